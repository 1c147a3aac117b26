"""Where in a model the self-attention layers are, stack by stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_relpos.families import Family

# Marks attention that a patch leaves as it is: cross-attention.
PLAIN = "_relpos_plain"


@dataclass
class Stack:
    """The layers that count and share together: an encoder or a decoder."""

    path: str
    module: Any
    attentions: list[nn.Module] = field(default_factory=list)


def stacks_of(model: PreTrainedModel, family: Family) -> list[Stack]:
    """The stacks of a model with their self-attention modules, in order."""
    attention_class = getattr(family.modeling, family.attention)
    stacks: dict[str, Stack] = {}
    pretrained = {path: module for path, module in model.named_modules() if isinstance(module, PreTrainedModel)}
    for path, module in model.named_modules():
        if isinstance(module, attention_class) and not family.is_cross_attention(path, module):
            owner = max((p for p in pretrained if p == "" or path.startswith(p + ".")), key=len)
            stacks.setdefault(owner, Stack(owner, pretrained[owner])).attentions.append(module)
    return list(stacks.values())


def plain_attentions(model: PreTrainedModel, family: Family) -> Iterator[nn.Module]:
    """The modules of the family's attention class that do cross-attention."""
    attention_class = getattr(family.modeling, family.attention)
    for path, module in model.named_modules():
        if isinstance(module, attention_class) and family.is_cross_attention(path, module):
            yield module
