"""From relative terms to what the tiled engines read: tables less their leftmost entry, and one that hides keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines.cpu.tiles import HIDDEN, Plan, skewed
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, add_tables, horizon, widen

# About this many scores of a tile per thread, so that they stay in the processor's cache.
TILE_SCORES = 2**20


class Tables(NamedTuple):
    """What gradients flow to besides queries, keys and values; every one of them may be None.

    Tables over offsets have entries for the offsets ``-k + 1 .. k``, or ``-k + 1 .. 0`` if causal; ``m`` in all. The
    entry for ``-k`` and below is subtracted.

    Attributes:
        query: ``[heads, m, dim]``, multiplied with the query, times the scale.
        bias: ``[heads, m]``, gated like ``query``.
        value: ``[heads, m, dim]``, mixed into the output.
        far_value: ``[heads, dim]``, the value vector that was subtracted from ``value``.
        gate: ``[batch, heads, queries]``, factor of all the above.
        added: a skewed table ``[heads or 1, rows, columns]`` added to the scores, ungated; hides later keys if causal.
    """

    query: Tensor | None = None
    bias: Tensor | None = None
    value: Tensor | None = None
    far_value: Tensor | None = None
    gate: Tensor | None = None
    added: Tensor | None = None

    @property
    def has_rows(self) -> bool:
        """Whether what is added to the scores depends on the query."""
        return self.query is not None or self.bias is not None


def prepare(
    query: Tensor, terms: RelativeTerms, mask: AttentionMask, *, span: int, rows: int, scale: float, dropout: float
) -> tuple[Plan, Tables]:
    """The geometry of a call, and its tables.

    Args:
        query: ``[batch, heads, queries, dim]``.
        terms: without a term on the keys, in the dtype of the query.
        mask: causality, a window and padding; with the queries' position known.
        span: queries in a block.
        rows: queries in a tile.
        scale: factor of the scores' dot products.
        dropout: probability with which a weight is dropped.
    """
    batch, heads, queries, _ = query.shape
    first: int = mask.query_offset  # type: ignore[assignment]
    last = first + queries - 1
    # No pair is farther apart than this.
    farthest = max(last, mask.key_length - 1 - first)
    if mask.window is not None:
        farthest = min(farthest, mask.window)
    # A bias that is gated depends on the query.
    gated_bias, bias = (None, terms.bias) if terms.gate is None else (terms.bias, None)
    tables = [table for table in (terms.query, terms.value, gated_bias) if table is not None]
    k = max([1, *(min(horizon(table), farthest + 1) for table in tables)])
    bias = add_tables(terms.native_bias, bias)
    added = _hiding(bias, mask, farthest, query)
    plan = Plan(
        queries=queries,
        keys=mask.key_length,
        offset=first,
        causal=mask.causal,
        k=k,
        reach=max(k, 1 if added is None else horizon(added)),
        local=mask.window is not None,
        span=span,
        rows=rows,
        items=1,
        hides_only=bias is None and mask.window is None,
        scale=scale,
        dropout=dropout,
    )
    plan = sized(plan)

    def less_leftmost(table: Tensor | None) -> Tensor | None:
        if table is None:
            return None
        table = fitted(table, k).expand(heads, *[-1] * (table.ndim - 1))
        return (table[:, 1:] - table[:, :1])[:, : k if mask.causal else 2 * k]

    return plan, Tables(
        query=less_leftmost(terms.query),
        bias=less_leftmost(gated_bias),
        value=less_leftmost(terms.value),
        far_value=None if terms.value is None else fitted(terms.value, k)[:, 0].expand(heads, -1),
        gate=None if terms.gate is None else terms.gate.expand(batch, -1, -1),
        added=None if added is None else skewed(added, plan),
    )


def sized(plan: Plan) -> Plan:
    """The plan with as many items worked on at once as stay in the cache."""
    widest = max(tile.width for block in plan.blocks() for tile in plan.tiles(block))
    scores = TILE_SCORES * torch.get_num_threads()
    return plan._replace(items=max(1, scores // (min(plan.rows, plan.queries) * widest)))


def _hiding(bias: Tensor | None, mask: AttentionMask, farthest: int, like: Tensor) -> Tensor | None:
    """The bias with the offsets hidden that causality and the window hide, ``[heads or 1, 2k + 1]``; None if empty."""
    if bias is None and not mask.causal and mask.window is None:
        return None
    table = like.new_zeros(1, 3) if bias is None else bias
    table = fitted(table, max(1, min(horizon(table), farthest + 1)) if mask.window is None else farthest + 1)
    offsets = torch.arange(-horizon(table), horizon(table) + 1, device=like.device)
    hidden = torch.zeros_like(offsets, dtype=torch.bool)
    if mask.causal:
        hidden |= offsets > 0
    if mask.window is not None:
        hidden |= offsets.abs() > mask.window
    return table.masked_fill(hidden, HIDDEN)


def fitted(table: Tensor, to: int) -> Tensor:
    """A table over offsets along dimension 1, at another horizon: its edges repeated, or cut off."""
    k = horizon(table)
    return widen(table, to) if k <= to else table[:, k - to : k + to + 1]
