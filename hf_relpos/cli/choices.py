"""The options that say what relative positions a model is to get, and the config they make."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.errors import CommandError
from hf_relpos.config import GATES, NATIVE
from hf_relpos.errors import RelPosConfigError
from hf_relpos.schemes import SCHEMES, SchemeConfig
from hf_relpos.schemes.spelling import SPELLING, parse


def add_schemes(group: Any) -> None:
    """Add `--scheme` to a group of options."""
    group.add_argument(
        "--scheme", nargs="+", required=True, metavar=SPELLING,
        help="one or several that add up, with their clip distances and other fields, as clipped:128 "
        f"shaw:16,value=false; of {', '.join(SCHEMES)}",
    )  # fmt: skip


def add_gate(group: Any) -> None:
    """Add `--gate` to a group of options."""
    group.add_argument(
        "--gate", default="head", choices=GATES, metavar="GATE",
        help=f"gate on them: {', '.join(GATES)} (%(default)s)",
    )  # fmt: skip


def add_native(group: Any) -> None:
    """Add `--native` to a group of options."""
    group.add_argument(
        "--native", default="gate", choices=NATIVE, metavar="CHOICE",
        help=f"what becomes of the pretrained positions: {', '.join(NATIVE)} (%(default)s)",
    )  # fmt: skip


def schemes_of(args: argparse.Namespace) -> list[SchemeConfig]:
    """The schemes of `--scheme`.

    Raises:
        CommandError: For what is no scheme.
    """
    return [_scheme(given) for given in args.scheme]


def _scheme(given: str) -> SchemeConfig:
    try:
        return parse(given)
    except RelPosConfigError as error:
        raise CommandError(f"--scheme {given}: {error}") from error
