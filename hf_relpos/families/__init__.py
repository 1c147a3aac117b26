"""The supported model families: a short spec each."""

from hf_relpos.families.base import Family, NativePositions
from hf_relpos.families.bert import BERT
from hf_relpos.families.gpt2 import GPT2
from hf_relpos.families.t5 import MT5, T5, UMT5

FAMILIES: dict[str, Family] = {family.package: family for family in (BERT, GPT2, T5, MT5, UMT5)}


def family_of(module_class: type) -> Family | None:
    """The family whose modelling code a class is from; None if there is none."""
    return next((family for family in FAMILIES.values() if family.modeling_name == module_class.__module__), None)


__all__ = ["FAMILIES", "Family", "NativePositions", "family_of"]
