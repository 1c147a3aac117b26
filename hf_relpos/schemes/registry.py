"""Which schemes there are, by name. Others' are welcome."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import TypeVar

from hf_relpos.errors import RelPosConfigError
from hf_relpos.schemes.base import PARTS, SchemeConfig

SCHEMES: dict[str, type[SchemeConfig]] = {}

Config = TypeVar("Config", bound=type[SchemeConfig])


def register_scheme(config_class: Config) -> Config:
    """Make a scheme known by its name: in ``RelPosConfig``, in saved models, in messages. Can be used as a decorator.

    Registering a class again is harmless, also one that its module was reloaded with.

    Args:
        config_class: a frozen dataclass, subclass of :class:`hf_relpos.schemes.SchemeConfig`, whose fields all have
            defaults that JSON can hold.

    Returns:
        The class.

    Raises:
        RelPosConfigError: if it does not fit; says where.
    """
    misfit = _misfit(config_class)
    if misfit is not None:
        raise RelPosConfigError(f"register_scheme: {getattr(config_class, '__name__', repr(config_class))} {misfit}.")
    SCHEMES[config_class.name] = config_class
    return config_class


def _misfit(given: object) -> str | None:
    """What keeps a class from being a scheme's config, as the rest of a sentence; None if nothing does."""
    if not (isinstance(given, type) and issubclass(given, SchemeConfig)):
        return "must be a class, a subclass of hf_relpos.schemes.SchemeConfig"
    params = vars(given).get("__dataclass_params__")
    if params is None or not params.frozen:
        return "must be a frozen dataclass: put @dataclass(frozen=True) above it"
    missing = sorted(given.__abstractmethods__)
    if missing:
        return f"must define {', '.join(missing)}, see hf_relpos.schemes.SchemeConfig"
    name = getattr(given, "name", None)
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        return f"has the name {name!r}, but must have a `name` of lower-case letters, digits and underscores"
    other = SCHEMES.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (given.__module__, given.__qualname__):
        return f"has the name {name!r}, which is that of {other.__module__}.{other.__qualname__}; take another one"
    return _field_misfit(given)


def _field_misfit(config_class: type[SchemeConfig]) -> str | None:
    for field in fields(config_class):
        if field.name in ("type", "name"):
            return f"has a field {field.name!r}, which stands for the scheme itself; call it something else"
        if field.default is MISSING:
            return f"has a field {field.name!r} without a default; the scheme is also made from its name alone"
        if not _is_json(field.default):
            return f"has a field {field.name!r} whose default {field.default!r} is nothing that JSON can hold as it is"
    unknown = sorted(config_class.start_fields - {field.name for field in fields(config_class)})
    if unknown:
        return f"names {', '.join(map(repr, unknown))} in `start_fields`, but has no such field"
    return _said_misfit(config_class())


def _said_misfit(usual: SchemeConfig) -> str | None:
    """The same for what a config says of itself."""
    parts, horizon = usual.parts, usual.horizon
    if not isinstance(parts, frozenset) or not parts or not parts <= PARTS:
        shown = sorted(parts) if isinstance(parts, frozenset) else repr(parts)
        return f"has the parts {shown}, but must have a frozenset of some of {', '.join(map(repr, sorted(PARTS)))}"
    if not (horizon is None or (type(horizon) is int and horizon >= 0)):
        return f"has the horizon {horizon!r}, but it must be a distance, a whole number of at least 0, or None"
    for said in ("starts_exact", "learns"):
        if not isinstance(getattr(usual, said), bool):
            return f"has {said}={getattr(usual, said)!r}, but it must be True or False"
    return None


def _is_json(value: object) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
