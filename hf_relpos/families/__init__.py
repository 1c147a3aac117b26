"""The supported model families, a short spec each, by their ``model_type``; others can be added."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hf_relpos.errors import FamilyError
from hf_relpos.families.bart import BART
from hf_relpos.families.base import Family
from hf_relpos.families.bert import BERT
from hf_relpos.families.distilbert import DISTILBERT
from hf_relpos.families.gpt2 import GPT2
from hf_relpos.families.native import AbsoluteEmbedding, NativePositions, RotaryPositions, ScoreBias
from hf_relpos.families.roberta import ROBERTA
from hf_relpos.families.t5 import MT5, T5, UMT5

BUILT_IN = (BERT, ROBERTA, DISTILBERT, GPT2, BART, T5, MT5, UMT5)
FAMILIES: dict[str, Family] = {family.package: family for family in BUILT_IN}


def family_of(module_class: type) -> Family | None:
    """The family whose modelling code a class is from; None if there is none."""
    return next((family for family in FAMILIES.values() if family.modeling_name == module_class.__module__), None)


def supported_in_words() -> str:
    """A sentence on the families there are, and how there come to be more."""
    names = ", ".join(family.prefix for family in FAMILIES.values())
    return (
        f"Supported are the models of these families, with any head: {names}. Another one is added by "
        "hf_relpos.register_family, with a spec of a few lines (docs/extending.md)."
    )


def add(family: Family) -> Family:
    """Put a family into ``FAMILIES``.

    Returns:
        The family; or the one that is there already, if its spec is the same.

    Raises:
        FamilyError: if it is no spec, its config class does not fit, or another family has its name, its modeling
            module or the name of its config class.
    """
    if not isinstance(family, Family):
        raise FamilyError(f"register_family takes a Family, but was given {family!r}.")
    for known in FAMILIES.values():
        if _spec(known) == _spec(family):
            return known
        for attribute, what in (("package", "name"), ("modeling_name", "modeling module"), ("config_name", "config")):
            if getattr(known, attribute) == getattr(family, attribute):
                raise FamilyError(
                    f"The family {family.package!r} cannot be registered: the family {known.package!r} is there "
                    f"already, with another spec and the same {what}, {getattr(known, attribute)!r}."
                )
    family.check()
    FAMILIES[family.package] = family
    return family


def _spec(family: Family) -> dict[str, Any]:
    """A spec to be compared: a module that is loaded again makes its functions and classes anew."""
    return {field.name: _named(getattr(family, field.name)) for field in fields(family)}


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _named(entry) for name, entry in value.items()}
    if callable(value):
        code = getattr(value, "__code__", None)
        return value.__module__, value.__qualname__, code and (code.co_code, code.co_consts, code.co_names)
    return value


__all__ = [
    "BUILT_IN",
    "FAMILIES",
    "AbsoluteEmbedding",
    "Family",
    "NativePositions",
    "RotaryPositions",
    "ScoreBias",
    "add",
    "family_of",
    "supported_in_words",
]
