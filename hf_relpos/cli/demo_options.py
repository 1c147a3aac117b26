"""The options of `hf-relpos demo`, apart from the demo, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.config import GATES, NATIVE
from hf_relpos.schemes import SCHEMES

DESCRIPTION = """
Fine-tune a pretrained classifier twice, without and with relative positions, on the same texts in the same
order; compare both, save the patched one, load it in a fresh process, and check that it predicts the same.
Without options it uses the MiniLM and the BBC news that the `demo` extra carries, and needs no network.
"""

FULL = {"max_steps": 100, "max_length": 128, "train_samples": None, "eval_samples": 256}
QUICK = {"max_steps": 6, "max_length": 64, "train_samples": 96, "eval_samples": 64}


def add_command(commands: Any) -> None:
    """Add `demo` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "demo",
        help="patch a model, fine-tune it, save it, load it, and compare it with its unpatched self",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output-dir", default="relpos-demo", metavar="DIR", help="where all results go (%(default)s)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few steps on a few short texts: shows that it runs, not how good it is",
    )
    what = parser.add_argument_group("model and texts")
    what.add_argument("--model", metavar="ID_OR_DIR", help="Hub id or folder of a model (the MiniLM of the extra)")
    what.add_argument(
        "--train-file",
        metavar="FILE",
        help=".csv, .json or .jsonl with the columns text and label (BBC news)",
    )
    what.add_argument("--eval-file", metavar="FILE", help="the same, to measure on; goes with --train-file")
    patch = parser.add_argument_group("patch")
    for option, default, choices, described in (
        ("--scheme", "shaw", SCHEMES, "relative positions"),
        ("--native", "gate", NATIVE, "pretrained positions"),
        ("--gate", "head", GATES, "gate on the relative terms"),
    ):
        patch.add_argument(option, default=default, help=f"{described}: {', '.join(choices)} (%(default)s)")
    patch.add_argument("--max-distance", type=positive, metavar="K", help="clip distance (the scheme's own)")
    training = parser.add_argument_group("training")
    training.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of everything random (%(default)s)")
    for name, described in (
        ("max_steps", "training steps"),
        ("max_length", "tokens after which a text is cut off"),
        ("train_samples", "texts to train on"),
        ("eval_samples", "texts to measure on"),
    ):
        training.add_argument(
            f"--{name.replace('_', '-')}",
            type=positive,
            metavar="N",
            help=f"{described} ({_shown(FULL[name])}; {_shown(QUICK[name])} with --quick)",
        )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    """Fill in the numbers that were not given, and run the demo."""
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    from hf_relpos.cli.demo import run_demo

    run_demo(args)


def positive(text: str) -> int:
    """A number of things."""
    return _whole(text, 1, None, "of at least 1")


def seed(text: str) -> int:
    """A seed that Python, NumPy and PyTorch all take."""
    return _whole(text, 0, 2**32 - 1, f"from 0 to {2**32 - 1}")


def _whole(text: str, least: int, most: int | None, allowed: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise argparse.ArgumentTypeError(f"{text!r} given, but it must be a whole number {allowed}")
    return number


def _shown(value: int | None) -> str:
    return "all" if value is None else str(value)
