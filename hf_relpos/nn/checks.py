"""Checks of arguments that several modules have."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.errors import wrong_value


def check_positive_int(owner: str, field: str, value: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool) or value < 1:
        raise wrong_value(owner, field, value, "a whole number of at least 1")


def check_bool(owner: str, field: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise wrong_value(owner, field, value, "True or False")


def check_dropout(owner: str, value: object) -> None:
    """Refuse what is no probability to drop with."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
        raise wrong_value(owner, "dropout", value, "a number from 0 to below 1")


def check_offset(offset: object) -> None:
    """Refuse what is no position of the first query: a whole number, also in a tensor."""
    if isinstance(offset, Tensor):
        if offset.ndim == 0 and not offset.is_floating_point() and offset.dtype != torch.bool:
            return
        given = f"a {offset.dtype} tensor of shape {list(offset.shape)}"
    elif isinstance(offset, (int, torch.SymInt)) and not isinstance(offset, bool):
        return
    else:
        given = repr(offset)
    raise TypeError(f"The offset, a position, is {given}, but must be an int or a 0-d integer tensor.")
