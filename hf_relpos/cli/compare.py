"""`hf-relpos compare` and `hf-relpos sweep`: read the texts, do the runs, show and write what they came to."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hf_relpos
from hf_relpos.cli.compare_options import CHOICES
from hf_relpos.cli.data import embedded_model_folder, load_bbc_news, load_labelled
from hf_relpos.cli.errors import CommandError, extra_missing
from hf_relpos.cli.models import EMBEDDED_MODEL_ID
from hf_relpos.cli.output import check_folder
from hf_relpos.cli.texts import COLUMN, texts_of
from hf_relpos.comparing.keeping import finished_runs

LABELS = "label"
NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}


def run_compare(args: argparse.Namespace) -> None:
    """Run `compare` from the options of `hf_relpos.cli.compare_options`.

    Raises:
        CommandError: If something is missing, or cannot be read or written.
        RelPosError: What :func:`hf_relpos.compare` raises.
    """
    _run(hf_relpos.compare, args, (*CHOICES, "settings"))


def run_sweep(args: argparse.Namespace) -> None:
    """Run `sweep` from the options of `hf_relpos.cli.sweep_options`; raises what :func:`run_compare` does."""
    _run(hf_relpos.sweep, args, (*CHOICES, "scheme", "distances"))


def _run(do: Callable[..., hf_relpos.Comparison], args: argparse.Namespace, names: Sequence[str]) -> None:
    output = Path(args.output_dir)
    check_folder("--output-dir", output)
    for module, package in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise extra_missing(package, f"`hf-relpos {args.command}`")
    texts = _texts(args)
    if args.model is None:
        source, called = str(embedded_model_folder()), EMBEDDED_MODEL_ID
    else:
        source, called = args.model, None
    chosen = {name: value for name in names if (value := getattr(args, name)) is not None}
    try:
        comparison = do(source, texts, name=called, output_dir=output, **chosen)
        comparison.save(output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(output)) from None
    except OSError as error:
        raise CommandError(
            f"--output-dir {output}: it cannot be written ({' '.join(str(error).split())}). {_kept(output)}"
        ) from error
    print(f"{comparison}\n\n{output / 'index.html'}  the same with its plots, which are there as PNG and SVG as well")


def _texts(args: argparse.Namespace) -> Any:
    """What the options name: labelled texts, or, for a task that needs none, texts."""
    if args.task == "distance":
        for option in ("eval_texts", "label_column"):
            if getattr(args, option) is not None:
                raise CommandError(
                    f"--{option.replace('_', '-')}: --task distance has no labels in its texts, and takes a part of "
                    "--texts to measure on. Leave it out."
                )
        return load_bbc_news() if args.texts is None else texts_of(args)
    if args.texts is not None:
        columns = (args.text_column or COLUMN, args.label_column or LABELS)
        return load_labelled(args.texts, args.eval_texts, *columns)
    for option in ("eval_texts", "text_column", "label_column"):
        if getattr(args, option) is not None:
            raise CommandError(f"--{option.replace('_', '-')} was given without --texts. Give both, or neither.")
    return load_bbc_news()


def _kept(output: Path) -> str:
    """What is left, and how to go on."""
    finished = finished_runs(output)
    if not finished:
        return "No run was finished."
    return f"Finished runs are kept in {output} ({finished}): the same command goes on from there."
