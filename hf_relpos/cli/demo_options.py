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

With --long: convert that MiniLM, which reads 512 tokens, to relative positions in place of its own, and ask it about
long texts, beside the original and the plain ways of making it read further. The conversion alone takes about a quarter
of an hour on two cores.
"""

FULL = {"max_steps": 100, "max_length": 128, "train_samples": None, "eval_samples": 256}
QUICK = {"max_steps": 6, "max_length": 64, "train_samples": 96, "eval_samples": 64}


PATCH = {"scheme": "shaw", "native": "gate", "gate": "head"}
# What the demo with --long has no use for: it converts as `hf-relpos convert` does by itself.
NOT_LONG = ("model", "train_file", "eval_file", *PATCH, "max_distance", *FULL)


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
    parser.add_argument(
        "--long",
        action="store_true",
        help="convert MiniLM, and see who reads long texts; goes with the two options above and --seed",
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
    for option, choices, described in (
        ("--scheme", SCHEMES, "relative positions"),
        ("--native", NATIVE, "pretrained positions"),
        ("--gate", GATES, "gate on the relative terms"),
    ):
        patch.add_argument(option, help=f"{described}: {', '.join(choices)} ({PATCH[option[2:]]})")
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
    """Fill in what was not given, and run the demo.

    Raises:
        CommandError: For options that do not go together.
    """
    if args.long:
        _run_long(args)
        return
    for name, value in {**PATCH, **(QUICK if args.quick else FULL)}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    from hf_relpos.cli.demo import run_demo

    run_demo(args)


def _run_long(args: argparse.Namespace) -> None:
    given = [f"--{name.replace('_', '-')}" for name in NOT_LONG if getattr(args, name) is not None]
    if given:
        from hf_relpos.cli.errors import CommandError

        raise CommandError(
            f"{', '.join(given)} was given with --long, which converts MiniLM as `hf-relpos convert` does by itself. "
            "Leave it out. For another model, other texts or another scheme: hf-relpos convert --help."
        )
    from hf_relpos.cli.long.demo import run_long_demo

    run_long_demo(args)


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
