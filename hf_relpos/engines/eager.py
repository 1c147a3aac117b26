"""The obvious engine: every score and weight is there to be looked at. The reference for the other engines."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_relpos.engines.engine import Case, Engine
from hf_relpos.engines.offsets import collect, spread
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, add_tables, horizon

# Up to this many scores per head, holding them all is faster than computing them again in the backward pass.
FEW_SCORES = 512 * 512

# Of the term on the keys, so many keys at least are laid out together.
LEAST_KEYS = 64


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
    weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention with relative terms, all pairs at once. Time and memory grow with queries x keys.

    Args:
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``; the number of heads is a multiple of the key heads.
        value: ``[batch, key heads, keys, value_dim]``.
        terms: what relative positions add, see :class:`RelativeTerms`.
        mask: who may attend to whom; a query that sees no key gets a zero output and no gradient.
        scale: factor of the scores' dot products.
        dropout: probability with which a weight is dropped.
        weights: whether the weights are wanted.

    Returns:
        The output ``[batch, heads, queries, value_dim]`` and the weights before dropout ``[batch, heads, queries,
        keys]`` or None, both in the dtype of ``query``. float16 and bfloat16 are computed in float32.
    """
    queries, keys = slice(0, query.shape[2]), slice(0, key.shape[2])
    return attend_block(
        query, key, value, terms, mask, queries, keys, scale=scale, dropout=dropout, return_weights=weights
    )


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    queries: slice,
    keys: slice,
    *,
    scale: float,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same for one block: ``query`` holds the mask's ``queries``, ``key`` and ``value`` its ``keys``."""
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with full_precision(query.device):
        query, key, value = (per_head(states.to(dtype), query.shape[1]) for states in (query, key, value))
        terms = terms.to(dtype)
        first = mask.query_offset + queries.start - keys.start
        gate = None if terms.gate is None else terms.gate[..., queries, None]

        query = query * scale
        scores = query @ key.transpose(-1, -2)
        relative = relative_scores(query, key, terms, gate, first, scale)
        if relative is not None:
            scores = scores + relative
        added = mask.added(queries, keys)
        if added is not None:
            scores = scores + added.to(dtype)
        allowed = mask.allowed(queries, keys, query.device)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(dtype).min)
        weights = scores.softmax(-1)
        kept = F.dropout(weights, dropout) if dropout > 0 else weights

        output = kept @ value
        if terms.value is not None:
            mixed = collect(kept, horizon(terms.value), first) @ terms.value
            output = output + (mixed if gate is None else gate * mixed)
        if allowed is not None:
            # The softmax of a query that sees no key is made of nothing.
            blind = ~allowed.any(-1, keepdim=True)
            output = output.masked_fill(blind, 0.0)
            weights = weights.masked_fill(blind, 0.0) if return_weights else weights
    return output.to(out_dtype), weights.to(out_dtype) if return_weights else None


def relative_scores(
    query: Tensor, key: Tensor, terms: RelativeTerms, gate: Tensor | None, first: int | Tensor, scale: float
) -> Tensor | None:
    """What the terms add to the scores ``[batch, heads, queries, keys]`` (broadcastable), or None.

    Args:
        query: ``[batch, heads, queries, head_dim]``, times the scale.
        key: ``[batch, heads, keys, head_dim]``.
        terms: in the dtype of the query.
        gate: ``[batch or 1, heads, queries, 1]`` or None.
        first: position of the first query minus position of the first key.
        scale: factor of the dot products, for the term on the key.
    """
    rows = score_rows(query, terms, gate)
    total = None
    if rows is not None:
        rows = rows.expand(*rows.shape[:-2], query.shape[2], rows.shape[-1])
        total = spread(rows, key.shape[2], first)
    if terms.key is not None:
        # Seen from the keys, the offset changes its sign and the roles change places.
        columns = key @ terms.key.flip(1).transpose(-1, -2) * scale
        by_key = _gated(_spread_keys(columns, query.shape[2], first).transpose(-1, -2), gate)
        total = by_key if total is None else total + by_key
    return total


def _spread_keys(columns: Tensor, queries: int, first: int | Tensor) -> Tensor:
    """Each key's number ``[..., keys, 2k + 1]`` for the offset of each query, ``[..., keys, queries]``."""
    if isinstance(first, Tensor):  # then they are indexed, and a record for other lengths has no loop
        return spread(columns, queries, -first)
    # Some keys at a time: laid out over offsets, all of them at once would be keys x keys numbers.
    keys, size = columns.shape[-2], max(queries, LEAST_KEYS)
    parts = [spread(columns[..., at : at + size, :], queries, at - first) for at in range(0, keys, size)]
    return torch.cat(parts, dim=-2)


def score_rows(query: Tensor, terms: RelativeTerms, gate: Tensor | None) -> Tensor | None:
    """All that depends on the query and the offset only, as rows over offsets, to be spread over the keys once.

    The query comes times the scale.

    Returns:
        ``[batch or 1, heads or 1, queries or 1, 2k + 1]`` at the largest horizon of the terms, or None.
    """
    rows = None
    if terms.query is not None:
        rows = _gated(query @ terms.query.transpose(-1, -2), gate)
    if terms.bias is not None:
        rows = add_tables(rows, _gated(terms.bias[:, None], gate), dim=-1)
    if terms.native_bias is not None:
        rows = add_tables(rows, terms.native_bias[:, None], dim=-1)
    return rows


def _gated(scores: Tensor, gate: Tensor | None) -> Tensor:
    return scores if gate is None else gate * scores


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where it is on."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def per_head(states: Tensor, heads: int) -> Tensor:
    """Keys or values with a copy for each of the query heads that share them."""
    groups = heads // states.shape[1]
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def pays_off(case: Case) -> bool:
    """Whether there are few scores; compiled code, which is to serve many lengths, is not to depend on one."""
    return not torch.compiler.is_compiling() and case.pairs <= FEW_SCORES


ENGINE = Engine("eager", attend, pays_off=pays_off)
