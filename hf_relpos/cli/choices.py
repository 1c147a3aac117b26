"""The options that say what relative positions a model is to get, and the config they make."""

from __future__ import annotations

import argparse
import json
import re
from contextlib import suppress
from typing import Any

from hf_relpos.cli.errors import CommandError
from hf_relpos.config import GATES, NATIVE, RelPosConfig
from hf_relpos.errors import RelPosConfigError
from hf_relpos.schemes import SCHEMES, SchemeConfig


def add_schemes(group: Any) -> None:
    """Add `--scheme` to a group of options."""
    group.add_argument(
        "--scheme", nargs="+", required=True, metavar="NAME[:K][,FIELD=VALUE]",
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


def schemes_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The schemes of `--scheme`, each as JSON.

    Raises:
        CommandError: For what is no scheme.
    """
    return [_scheme(given) for given in args.scheme]


def as_option(scheme: SchemeConfig) -> str:
    """A scheme as `--scheme` takes it: its clip distance, if it has one, and the fields that are not as by default."""
    fields = scheme.to_dict()
    usual = type(scheme)().to_dict()
    distance = fields.get("max_distance")
    changed = [f"{name}={json.dumps(value)}" for name, value in fields.items() if value != usual[name]]
    others = [one for one in changed if not one.startswith("max_distance=")]
    return ",".join([scheme.name if distance is None else f"{scheme.name}:{distance}", *others])


def _scheme(given: str) -> dict[str, Any]:
    name, *settings = re.split("[:,]", given)
    if name not in SCHEMES:
        raise CommandError(f"--scheme {given}: there is no scheme {name!r}. Give one of {', '.join(SCHEMES)}.")
    scheme: dict[str, Any] = {"type": name}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if equals:
            scheme[field] = _value(value)
        elif setting.isdecimal():
            scheme["max_distance"] = int(setting)
        else:
            raise CommandError(
                f"--scheme {given}: {setting!r} must be a whole number, the clip distance of {name!r}, or FIELD=VALUE."
            )
    try:
        RelPosConfig([scheme])
    except RelPosConfigError as error:
        raise CommandError(f"--scheme {given}: {error}") from error
    return scheme


def _value(given: str) -> Any:
    """A value as JSON has it; what is none there is text."""
    with suppress(json.JSONDecodeError):
        return json.loads(given)
    return given
