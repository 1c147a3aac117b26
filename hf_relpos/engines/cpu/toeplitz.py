"""The engine for terms that are only a bias: PyTorch's fused operator for everything, and a little for the table.

A bias depends on ``key - query`` only. With the queries in reverse order that is ``key + query`` and a constant, so
the whole matrix of biases is a view with strides (1, 1) on as many numbers as there are offsets: the fused operator
takes it as its additive mask, at full speed and without memory for it, forward and backward.

What the operator does not give is the gradient of the biases, so this engine is for those that do not learn: all
inference, and frozen tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines import eager
from hf_relpos.engines.cpu import dense
from hf_relpos.engines.cpu import operators as fused
from hf_relpos.engines.cpu.layout import empty_like
from hf_relpos.engines.cpu.tables import fitted
from hf_relpos.engines.cpu.tiles import HIDDEN
from hf_relpos.engines.derivatives import first_order
from hf_relpos.engines.engine import Case, Engine
from hf_relpos.engines.offsets import spread
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, add_tables, horizon

# Queries in a block, if later keys are hidden.
SPAN = 256


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    refusal = dense.refuses(case)
    if refusal is not None:
        return refusal
    terms, mask = case.terms, case.mask
    if terms.query is not None or terms.value is not None:
        return "terms on the query or the value"
    gate = None if terms.bias is None else terms.gate
    if gate is not None and (gate.shape[0], gate.shape[2]) != (1, 1):
        return "a bias that is gated by the query"
    if case.bias_learns or (torch.is_grad_enabled() and gate is not None and gate.requires_grad):
        return "a bias that learns"
    if case.dropout > 0:
        return "attention dropout"
    if mask.window is not None:
        return "a window"
    if mask.padding is not None and not _in_one_piece(mask.padding):
        return "padding between the tokens"
    if case.device != "cpu":
        return f"tensors on {case.device!r}"
    if not fused.is_sound("cpu"):
        return "this release of PyTorch"
    return None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """Attention with a bias over offsets, for all that :func:`refuses` does not refuse.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights.
    """
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with eager.full_precision(query.device):
        query, key, value = (eager.per_head(states.to(dtype), query.shape[1]) for states in (query, key, value))
        terms = terms.to(dtype)
        if terms.gate is not None:
            terms = terms.scaled(terms.gate.flatten())
        table: Tensor = add_tables(terms.native_bias, terms.bias)  # type: ignore[assignment]
        first: int = mask.query_offset  # type: ignore[assignment]
        keys, queries = mask.key_length, mask.query_length
        farthest = max(first + queries - 1, keys - 1 - first)
        table = fitted(table, min(horizon(table), farthest + 1))
        layout = _Layout(queries, keys, first, mask.causal, scale)
        output = _Toeplitz.apply(query, key, value, _numbers(table, layout), mask.padding, layout)
    return output.to(out_dtype), None


def _in_one_piece(padding: Tensor) -> bool:
    """Whether in every sequence the tokens stand together, as left or right padding leaves them."""
    changes = (padding[:, 1:] != padding[:, :-1]).sum(-1)
    inside = (changes == 2) & ~padding[:, 0]
    return bool(((changes <= 1) | inside).all())


class _Layout(NamedTuple):
    """The geometry of a call.

    Attributes:
        queries: number of queries.
        keys: number of keys.
        first: position of the first query, counted in keys.
        causal: whether later keys are hidden.
        scale: factor of the dot products.
    """

    queries: int
    keys: int
    first: int
    causal: bool
    scale: float


def _sequences(padding: Tensor | None, batch: int, keys: int) -> Iterator[tuple[slice, slice]]:
    """The sequences that have their tokens in the same place, and that place."""
    if padding is None:
        yield slice(0, batch), slice(0, keys)
        return
    counts = padding.sum(-1).tolist()
    starts = padding.int().argmax(-1).tolist()
    places = list(zip(starts, counts, strict=True))
    begin = 0
    for at in range(1, batch + 1):
        if at == batch or places[at] != places[begin]:
            start, count = places[begin]
            yield slice(begin, at), slice(start, start + count)
            begin = at


def _numbers(table: Tensor, layout: _Layout) -> Tensor:
    """The table at every offset there is, lowest first, ``[heads or 1, queries + keys - 1]``; later keys are hidden."""
    before = layout.queries - 1 + layout.first
    numbers = spread(table.unsqueeze(1), layout.queries + layout.keys - 1, before).squeeze(1)
    if layout.causal:
        numbers = numbers.clone()
        numbers[:, before + 1 :] = HIDDEN
    return numbers


def _mask(numbers: Tensor, layout: _Layout, queries: slice, keys: slice) -> Tensor:
    """The numbers as the operator's mask for reversed queries, ``[1, heads or 1, queries, keys]``; a view."""
    heads, width = numbers.shape
    size = (1, heads, queries.stop - queries.start, keys.stop - keys.start)
    # The block's last query, which comes first.
    start = layout.queries - queries.stop + keys.start
    return numbers.as_strided(size, (0, width, 1, 1), numbers.storage_offset() + start)


class _Toeplitz(torch.autograd.Function):
    """Args: query, key, value ``[batch, heads, length, dim]``; biases as :func:`_numbers`; padding; the layout."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, padding: Tensor | None, layout: _Layout
    ) -> Tensor:
        output, log_sum = empty_like(query), query.new_empty(query.shape[:3])
        for sequences, queries, keys in _calls(padding, len(query), layout):
            at, seen = (sequences, slice(None), queries), (sequences, slice(None), keys)
            if keys.stop <= keys.start:
                output[at], log_sum[at] = 0.0, HIDDEN
                continue
            mask = _mask(numbers, layout, queries, keys)
            part, part_log_sum = fused.attend(query[at].flip(2), key[seen], value[seen], mask, layout.scale)
            output[at], log_sum[at] = part.flip(2), part_log_sum.flip(2)
        if padding is not None:
            blind = log_sum < HIDDEN / 2
            output.masked_fill_(blind.unsqueeze(-1), 0.0)
            # With this, their weights come out as zero in the backward pass.
            log_sum.masked_fill_(blind, -HIDDEN)
        ctx.save_for_backward(query, key, value, numbers, padding, output, log_sum)
        ctx.layout = layout
        return output

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, numbers, padding, output, log_sum = ctx.saved_tensors
        layout = ctx.layout
        with eager.full_precision(grad.device):
            if padding is not None:
                grad = grad.masked_fill((log_sum == -HIDDEN).unsqueeze(-1), 0.0)
            grad_query, grad_key, grad_value = (torch.zeros_like(empty_like(states)) for states in (query, key, value))
            for sequences, queries, keys in _calls(padding, len(query), layout):
                if keys.stop <= keys.start:
                    continue
                at, seen = (sequences, slice(None), queries), (sequences, slice(None), keys)
                part_query, part_key, part_value = fused.attend_backward(
                    grad[at].flip(2),
                    query[at].flip(2),
                    key[seen],
                    value[seen],
                    output[at].flip(2),
                    log_sum[at].flip(2),
                    _mask(numbers, layout, queries, keys),
                    layout.scale,
                )
                grad_query[at] = part_query.flip(2)
                grad_key[seen] += part_key
                grad_value[seen] += part_value
        return grad_query, grad_key, grad_value, None, None, None


def _calls(padding: Tensor | None, batch: int, layout: _Layout) -> Iterator[tuple[slice, slice, slice]]:
    """Sequences, queries and keys of each call of the operator; possibly no keys."""
    span = SPAN if layout.causal else layout.queries
    for sequences, tokens in _sequences(padding, batch, layout.keys):
        for start in range(0, layout.queries, span):
            queries = slice(start, min(start + span, layout.queries))
            stop = layout.first + queries.stop if layout.causal else tokens.stop
            yield sequences, queries, slice(tokens.start, min(tokens.stop, stop))


ENGINE = Engine("toeplitz", attend, refuses, dense.pays_off)
