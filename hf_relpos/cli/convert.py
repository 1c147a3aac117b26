"""`hf-relpos convert`: load, convert, save in one go or not at all."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

import hf_relpos
from hf_relpos.cards import write_model_card
from hf_relpos.cli.choices import schemes_of
from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.hub import check_repo_id, push
from hf_relpos.cli.models import EMBEDDED_MODEL_ID, load_model
from hf_relpos.cli.output import check_new_folder, put_in_place
from hf_relpos.cli.texts import texts_of
from hf_relpos.conversion.card import for_card
from hf_relpos.conversion.progress import has_checkpoint

# What torch says when a checkpoint cannot be written; it raises a RuntimeError of no class of its own.
_TORCH_CANNOT_WRITE = "inline_container"

FIDELITY = "fidelity.json"
UNFINISHED = ".unfinished"  # how the name of a folder ends in which a conversion is not done yet


def run_convert(args: argparse.Namespace) -> None:
    """Run the command from the options of `hf_relpos.cli.convert_options`.

    Everything is written beside the output folder, which only appears when it is complete.

    Raises:
        CommandError: If something cannot be loaded, read or written. There is no output folder then.
        RelPosError: What :func:`hf_relpos.convert` raises.
    """
    output = Path(args.output_dir)
    unfinished = output.parent / (output.name + UNFINISHED)
    _check_output(output, unfinished, args.resume)
    if args.push_to_hub is not None:
        check_repo_id(args.push_to_hub)
    if args.steps is not None and not any(args.steps):
        raise CommandError("--steps 0 0 teaches nothing. Give at least one of the two above 0.")
    relpos = hf_relpos.RelPosConfig(schemes=schemes_of(args), native="drop", gate=args.gate)
    texts = texts_of(args)
    print(f"loading {args.model or EMBEDDED_MODEL_ID} ...", file=sys.stderr, flush=True)
    model, tokenizer = load_model(args.model)
    chosen = {
        name: getattr(args, name)
        for name in ("steps", "batch_tokens", "lengths", "target")
        if getattr(args, name) is not None
    }
    checkpoints = unfinished / "checkpoints"
    result = unfinished / "result" / output.name  # by its name a card tells how to load it
    try:
        converted: Any = hf_relpos.convert(
            model,
            relpos,
            texts,
            tokenizer,
            seed=args.seed,
            output_dir=checkpoints,
            resume=args.resume,
            training_arguments={"save_strategy": "steps", "save_steps": args.save_steps, "bf16": args.bf16},
            **chosen,
        )
        report: hf_relpos.FidelityReport = converted.relpos_fidelity
        print(f"\n{report}\n")
        shutil.rmtree(result, ignore_errors=True)
        save_converted(converted, tokenizer, result, args.model or EMBEDDED_MODEL_ID)
        put_in_place(result, output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(checkpoints, unfinished)) from None
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and _TORCH_CANNOT_WRITE not in str(error):
            raise
        raise CommandError(
            f"--output-dir {output}: it cannot be written ({' '.join(str(error).split())}). What is done so far is in "
            f"{unfinished}: make room, and give the command again with --resume."
        ) from error
    shutil.rmtree(unfinished)
    print(f"{output}  the converted model, its tokenizer, its card and its fidelity ({report.seconds:.0f} seconds)")
    if args.push_to_hub is not None:
        push(args.push_to_hub, lambda repo: output, kept=output)


def _check_output(output: Path, unfinished: Path, resume: bool) -> None:
    """Refuse a folder that is not new, one that a conversion is on its way to, or one to resume into that none is."""
    if resume and (output / FIDELITY).exists():
        raise CommandError(
            f"--resume: the conversion into --output-dir {output} is finished. Load it from there, or leave --resume "
            "out and give the name of a new folder."
        )
    check_new_folder("--output-dir", output)
    if unfinished.exists() and not resume:
        raise CommandError(
            f"--output-dir {output}: a conversion into it was interrupted, and is in {unfinished}. Go on with it by "
            "--resume, or remove that folder."
        )
    if resume and not unfinished.exists():
        raise CommandError(
            f"--resume: there is nothing to go on with. No conversion into --output-dir {output} was interrupted after "
            f"a checkpoint (there is no {unfinished}). Give the folder of one that was, or leave --resume out."
        )


def _kept(checkpoints: Path, unfinished: Path) -> str:
    """What Ctrl-C leaves: a conversion to go on with, or nothing."""
    if has_checkpoint(checkpoints):
        return (
            f"What it had learned by its last checkpoint is in {unfinished}: go on by the same command with --resume."
        )
    shutil.rmtree(unfinished, ignore_errors=True)
    return "It had not come to its first checkpoint (--save-steps), so nothing is kept."


def save_converted(converted: Any, tokenizer: Any, folder: Path, source: str) -> None:
    """Write a converted model, its tokenizer, its card and its fidelity.

    Args:
        converted: The model.
        tokenizer: Its tokenizer; None where it is a sentence model, which has one.
        folder: Where to.
        source: The folder or the id of the original.
    """
    report: hf_relpos.FidelityReport = converted.relpos_fidelity
    converted.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        original = Path(source).resolve().name if Path(source).is_dir() else source
        write_model_card(
            converted, folder, training={"original": original}, conversion=for_card(report), overwrite=True
        )
    else:
        card = folder / "README.md"
        card.write_text(card.read_text(encoding="utf-8") + report.section(), encoding="utf-8")
    report.save(folder / FIDELITY)
    with suppress(ModuleNotFoundError):  # matplotlib, which is in the demo's extra
        report.plot(folder / "fidelity.png")
