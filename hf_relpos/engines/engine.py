"""What an engine is to the others: a record, asked by `choose` whether it takes a case, and whether it pays off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hf_relpos.compat import pytorch
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Tensors that kernels of ours read; others, of subclasses, may hold their numbers elsewhere.
PLAIN = (Tensor, torch.nn.Parameter)

# What the operators with kernels of ours say of derivatives that they do not have.
NOT_DERIVED = (
    "The engine 'fused' has no {}. Use engine='eager', or 'blockwise' for memory that grows linearly with the length: "
    "PyTorch can differentiate them in every way."
)
SECOND = "second derivatives"
BATCHED = "batched gradients (`is_grads_batched`, or `vmap` over a backward pass)"


class Case(NamedTuple):
    """One call of attention, as engines are asked about it. The attributes are those of `engines.attend`."""

    query: Tensor
    key: Tensor
    value: Tensor
    terms: RelativeTerms
    mask: AttentionMask
    dropout: float = 0.0

    @property
    def device(self) -> str:
        """The type of device the call is on."""
        return self.query.device.type

    @property
    def dtype(self) -> torch.dtype:
        """The widest of the dtypes of queries, keys and values."""
        query, key, value = self.query.dtype, self.key.dtype, self.value.dtype
        return query if query == key == value else torch.promote_types(query, torch.promote_types(key, value))

    @property
    def pairs(self) -> int:
        """Number of queries times keys: of the scores of a head."""
        return self.query.shape[2] * self.key.shape[2]

    @property
    def is_plain(self) -> bool:
        """Whether plain attention is the answer: no terms, or no numbers."""
        return self.terms.is_empty or 0 in self.query.shape

    @property
    def has_tangents(self) -> bool:
        """Whether a derivative is carried along, in forward mode."""
        if not pytorch.in_forward_mode():  # asked for every call, and hardly ever so
            return False
        tensors = (self.query, self.key, self.value, *self.terms.tables, self.terms.gate, self.mask.dense)
        return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def takes_everything(case: Case) -> None:
    """No refusal."""


def always(case: Case) -> bool:
    """It pays off."""
    return True


@dataclass(frozen=True)
class Engine:
    """One way to compute attention.

    Attributes:
        name: what it is asked for by.
        attend: the computation, with the arguments and results of :func:`hf_relpos.engines.eager.attend`.
        refuses: what of a case it cannot take exactly, in words that follow "cannot take"; None if it takes it.
        pays_off: whether it is faster on a case, or leaner, than every engine after it in the registry.
        is_choice: whether users choose it by name; if not, it is a short cut that is taken where it fits.
        guards: whether it keeps out of outputs and gradients what is hidden and not finite; of other engines `unseen`
            takes care.
    """

    name: str
    attend: Callable[..., tuple[Tensor, Tensor | None]]
    refuses: Callable[[Case], str | None] = takes_everything
    pays_off: Callable[[Case], bool] = always
    is_choice: bool = True
    guards: bool = False
