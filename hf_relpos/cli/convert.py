"""`hf-relpos convert`: load, convert, save in one go or not at all."""

from __future__ import annotations

import argparse
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import cached_file

import hf_relpos
from hf_relpos.cards import write_model_card
from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.files import TABLES, read_file
from hf_relpos.cli.loading import loading
from hf_relpos.cli.output import check_folder
from hf_relpos.names import CLASS_PREFIX

# What torch says when a checkpoint cannot be written; it raises a RuntimeError of no class of its own.
_TORCH_CANNOT_WRITE = "inline_container"

UNFINISHED = ".unfinished"  # how the name of a folder ends in which a conversion is not done yet


def run_convert(args: argparse.Namespace) -> None:
    """Run the command from the options of `hf_relpos.cli.convert_options`.

    Everything is written beside the output folder, which only appears when it is complete.

    Raises:
        CommandError: If something cannot be loaded, read or written. There is no output folder then.
        RelPosError: What :func:`hf_relpos.convert` raises.
    """
    output = Path(args.output_dir)
    _check_output(output)
    unfinished = output.with_name(output.name + UNFINISHED)
    if unfinished.exists() and not args.resume:
        raise CommandError(
            f"--output-dir {output}: a conversion into it was interrupted, and is in {unfinished}. Go on with it by "
            "--resume, or remove that folder."
        )
    relpos = hf_relpos.RelPosConfig(schemes=[_scheme(given) for given in args.scheme], native="drop", gate=args.gate)
    texts = _texts(args)
    model, tokenizer = _load(args.model)
    chosen = {
        name: getattr(args, name)
        for name in ("steps", "batch_tokens", "lengths", "target")
        if getattr(args, name) is not None
    }
    checkpoints = unfinished / "checkpoints"
    result = unfinished / "result"
    try:
        converted: Any = hf_relpos.convert(
            model,
            relpos,
            texts,
            tokenizer,
            column=args.text_column,
            seed=args.seed,
            output_dir=checkpoints,
            resume=args.resume,
            training_arguments={"save_strategy": "steps", "save_steps": args.save_steps, "bf16": args.bf16},
            **chosen,
        )
        report: hf_relpos.FidelityReport = converted.relpos_fidelity
        print(f"\n{report}\n")
        shutil.rmtree(result, ignore_errors=True)
        _save(converted, tokenizer, result, output.name, args.model)
        result.rename(output)
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
        _push(output, args.push_to_hub)


def _check_output(output: Path) -> None:
    check_folder("--output-dir", output)
    if output.is_dir() and any(output.iterdir()):
        raise CommandError(f"--output-dir {output} is there already, with files in it. Give the name of a new folder.")
    if output.is_dir():
        output.rmdir()


def _scheme(given: str) -> dict[str, Any]:
    """A scheme as JSON from `name` or `name:max_distance`."""
    name, _, distance = given.partition(":")
    if not distance:
        return {"type": name}
    if not distance.isdecimal():
        raise CommandError(f"--scheme {given}: {distance!r} must be a whole number, the clip distance of {name!r}.")
    return {"type": name, "max_distance": int(distance)}


def _texts(args: argparse.Namespace) -> Any:
    """What `convert` takes: a table's rows, or what it reads itself."""
    if Path(args.texts).suffix[1:] in TABLES:
        return read_file("--texts", args.texts)
    return args.texts


def _load(source: str) -> tuple[Any, Any]:
    """A model in the class it was saved from, and its tokenizer; or a sentence model, which has one itself."""
    with loading("MODEL", source):
        if _is_sentence_model(source):
            return _load_sentence_model(source), None
        return _class_of(AutoConfig.from_pretrained(source)).from_pretrained(source), AutoTokenizer.from_pretrained(
            source
        )


def _is_sentence_model(source: str) -> bool:
    try:
        return cached_file(source, "modules.json") is not None
    except OSError:
        return False


def _load_sentence_model(source: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise CommandError(
            f"MODEL {source} is one of sentence-transformers, which is not installed. Install it: pip install "
            "sentence-transformers."
        ) from error
    return SentenceTransformer(source)


def _class_of(config: Any) -> Any:
    """The class a model was saved from, stock or patched; without a head where its config names none."""
    name = next(iter(config.architectures or ()), "")
    return getattr(transformers, name, None) or (
        getattr(hf_relpos, name) if name.startswith(CLASS_PREFIX) else AutoModel
    )


def _save(converted: Any, tokenizer: Any, folder: Path, title: str, source: str) -> None:
    report: hf_relpos.FidelityReport = converted.relpos_fidelity
    training = {"made from": source, **{name: value for name, value in report.settings.items() if name != "relpos"}}
    converted.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        write_model_card(converted, folder, title=title, training=training, progress=report.table, overwrite=True)
    else:
        card = folder / "README.md"
        card.write_text(card.read_text(encoding="utf-8") + report.section(), encoding="utf-8")
    report.save(folder / "fidelity.json")
    with suppress(ModuleNotFoundError):  # matplotlib, which is in the demo's extra
        report.plot(folder / "fidelity.png")


def _push(folder: Path, repo_id: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        repo = api.create_repo(repo_id, exist_ok=True).repo_id
        api.upload_folder(repo_id=repo, folder_path=folder)
    except Exception as error:  # the client raises errors of its own, of the network, of the values given
        raise CommandError(
            f"--push-to-hub {repo_id}: the result is in {folder}, but could not be pushed: "
            f"{' '.join(str(error).split())}"
        ) from error
    print(f"pushed to {repo_id}")
