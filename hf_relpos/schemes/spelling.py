"""A scheme in one word, as it is named on the command line: `shaw:16,value=false`."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from hf_relpos.errors import RelPosConfigError, refuse_unknown
from hf_relpos.schemes.base import SchemeConfig
from hf_relpos.schemes.registry import SCHEMES

SPELLING = "NAME[:K][,FIELD=VALUE]"


def parse(given: str) -> SchemeConfig:
    """The scheme that a word stands for: its name, its clip distance, its other fields.

    Raises:
        RelPosConfigError: for what is no scheme; names the part that is wrong, and what is allowed.
    """
    name, *settings = re.split("[:,]", given)
    if name not in SCHEMES:
        raise RelPosConfigError(f"there is no scheme {name!r}. Give one of {', '.join(SCHEMES)}.")
    fields: dict[str, Any] = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if equals:
            fields[field] = _value(value)
        elif setting.isdecimal() and not fields:
            fields["max_distance"] = int(setting)
        else:
            raise RelPosConfigError(
                f"{setting!r} must be a whole number right after {name!r}, its clip distance, or FIELD=VALUE."
            )
    scheme = SCHEMES[name]
    refuse_unknown(scheme.__name__, fields, scheme.names())
    return scheme(**fields)


def meant_by(given: object) -> str:
    """What was probably meant by a name that no scheme has, as a sentence; nothing where no other is near it."""
    if not isinstance(given, str):
        return ""
    with suppress(RelPosConfigError):
        return f" {given!r} is how a command is told; here it is {parse(given)}."
    called = {name: name for name in SCHEMES} | {scheme.__name__.lower(): name for name, scheme in SCHEMES.items()}
    near = get_close_matches(given.lower(), called, n=1)
    return f" Did you mean {called[near[0]]!r}?" if near else ""


def spell(scheme: SchemeConfig) -> str:
    """A scheme as :func:`parse` takes it: its name, its clip distance, and the fields that are not as by default."""
    fields = scheme.to_dict()
    usual = type(scheme)().to_dict()
    distance = fields.get("max_distance")
    changed = [f"{name}={json.dumps(value)}" for name, value in fields.items() if value != usual[name]]
    others = [one for one in changed if not one.startswith("max_distance=")]
    return ",".join([scheme.name if distance is None else f"{scheme.name}:{distance}", *others])


def _value(given: str) -> Any:
    """A value as JSON has it; what is none there is text."""
    with suppress(json.JSONDecodeError):
        return json.loads(given)
    return given
