"""What goes into the schemes when a layer runs, and what comes out of them: two records, quickly made."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms


class AttentionCall(NamedTuple):
    """One call of an attention layer, as the model makes it.

    Attributes:
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``, cached keys included; the number of heads is a multiple of the
            key heads.
        value: ``[batch, key heads, keys, value_dim]``, like ``key``.
        mask: where the queries stand among the keys, and which pairs may attend.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: AttentionMask


class Contribution(NamedTuple):
    """What one scheme, or all those of a layer, make of a call.

    Attributes:
        terms: tables over offsets, which the engine adds to the scores and the output.
        query: the queries to attend with: those of the call, or rotated ones.
        key: the keys to attend with, like ``query``.
        branch: ``[batch, heads, queries, value_dim]``, added to attention's output; or None.
    """

    terms: RelativeTerms
    query: Tensor
    key: Tensor
    branch: Tensor | None = None
