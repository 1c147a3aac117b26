"""The engine for terms that are only a bias: PyTorch's fused operator for everything, and a little for the table.

A bias depends on ``key - query`` only. With the queries in reverse order that is ``key + query`` and a constant, so
the whole matrix of biases is a view with strides (1, 1) on as many numbers as there are offsets: the fused operator
takes it as its additive mask, at full speed and without memory for it, forward and backward.

What the operator does not give is the table's gradient, the sum of the scores' gradients over equal offsets. Near the
diagonal they are computed once more, in tiles. Beyond the right horizon their sum follows from what the keys there put
into the output, which the forward pass then computes apart from the rest; and all together sum to zero, which gives the
left. A frozen table costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_relpos.engines import dense, eager, fused
from hf_relpos.engines.layout import Inputs, empty_like, log_sum_exp, product, softmax
from hf_relpos.engines.offsets import collect, spread
from hf_relpos.engines.tables import Tables, fitted, sized
from hf_relpos.engines.tiles import HIDDEN, Plan, columns, skewed, skewed_part
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, add_tables, horizon

# Queries in a block, where there is a reason for blocks: causality, or a table that learns.
SPAN = 256


def refuses(query: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    refusal = dense.refuses(query, value, terms, mask, dropout)
    if refusal is not None:
        return refusal
    if terms.query is not None or terms.value is not None:
        return "terms on the query or the value"
    if terms.bias is not None and terms.gate is not None:
        return "a bias that is gated by the query"
    if dropout > 0:
        return "attention dropout"
    if mask.window is not None:
        return "a window"
    if mask.padding is not None and not _in_one_piece(mask.padding):
        return "padding between the tokens"
    if query.device.type != "cpu":
        return f"tensors on {query.device.type!r}"
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
        table: Tensor = add_tables(terms.native_bias, terms.bias)  # type: ignore[assignment]
        first: int = mask.query_offset  # type: ignore[assignment]
        keys, queries = mask.key_length, mask.query_length
        farthest = max(first + queries - 1, keys - 1 - first)
        table = fitted(table, min(horizon(table), farthest + 1))
        learns = torch.is_grad_enabled() and table.requires_grad
        layout = _Layout(queries, keys, first, mask.causal, horizon(table), scale, learns)
        output = _Toeplitz.apply(query, key, value, table, mask.padding, layout)
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
        k: the table's horizon.
        scale: factor of the dot products.
        learns: whether the table's gradient is wanted.
    """

    queries: int
    keys: int
    first: int
    causal: bool
    k: int
    scale: float
    learns: bool


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
    """The table at every offset there is, lowest first, ``[heads or 1, queries + keys - 1]``."""
    return spread(table.unsqueeze(1), layout.queries + layout.keys - 1, layout.queries - 1 + layout.first).squeeze(1)


def _hide(numbers: Tensor, layout: _Layout, below: int | None = None, above: int | None = None) -> Tensor:
    """The numbers of the offsets below and above certain ones at (almost) minus infinity."""
    lowest = -(layout.queries - 1) - layout.first
    numbers = numbers.clone()
    if below is not None:
        numbers[:, : max(0, below - lowest)] = HIDDEN
    if above is not None:
        numbers[:, max(0, above + 1 - lowest) :] = HIDDEN
    return numbers


def _mask(numbers: Tensor, layout: _Layout, queries: slice, keys: slice) -> Tensor:
    """The numbers as the operator's mask for reversed queries, ``[1, heads or 1, queries, keys]``; a view."""
    heads, width = numbers.shape
    size = (1, heads, queries.stop - queries.start, keys.stop - keys.start)
    # The block's last query, which comes first.
    start = layout.queries - queries.stop + keys.start
    return numbers.as_strided(size, (0, width, 1, 1), numbers.storage_offset() + start)


class _Toeplitz(torch.autograd.Function):
    """Args: query, key, value ``[batch, heads, length, dim]``; table ``[heads or 1, 2k + 1]``; padding; the layout."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, padding: Tensor | None, layout: _Layout
    ) -> Tensor:
        batch, heads = query.shape[:2]
        numbers = _hide(_numbers(table, layout), layout, above=0 if layout.causal else None)
        output, log_sum = empty_like(query), query.new_empty(batch, heads, layout.queries)
        far_output = far_log_sum = None
        near = far = numbers
        if layout.learns and not layout.causal:
            far_output, far_log_sum = empty_like(query), torch.empty_like(log_sum)
            near, far = _hide(numbers, layout, above=layout.k - 1), _hide(numbers, layout, below=layout.k)
        for sequences, tokens in _sequences(padding, batch, layout.keys):
            for queries in _blocks(layout, SPAN if layout.causal or layout.learns else layout.queries):
                at = (sequences, slice(None), queries)
                first, last = layout.first + queries.start, layout.first + queries.stop - 1
                stop = min(tokens.stop, last + 1) if layout.causal else tokens.stop

                states = query[at], key[sequences], value[sequences]
                if far_output is None or far_log_sum is None:
                    block_output, block_sum = _forward(*states, numbers, layout, queries, tokens.start, stop)
                else:
                    near_stop, far_start = min(stop, last + layout.k), max(tokens.start, first + layout.k)
                    block_output, block_sum = _forward(*states, near, layout, queries, tokens.start, near_stop)
                    far_output[at], far_log_sum[at] = _forward(*states, far, layout, queries, far_start, stop)
                    total = torch.logaddexp(block_sum, far_log_sum[at])
                    block_output = block_output * (block_sum - total).exp_().unsqueeze(-1)
                    block_output.addcmul_(far_output[at], (far_log_sum[at] - total).exp_().unsqueeze(-1))
                    block_sum = total
                if padding is not None:
                    blind = block_sum < HIDDEN / 2
                    block_output = block_output.masked_fill(blind.unsqueeze(-1), 0.0)
                    # With this, their weights come out as zero in the backward pass.
                    block_sum = block_sum.masked_fill(blind, -HIDDEN)
                output[at], log_sum[at] = block_output, block_sum
        ctx.save_for_backward(query, key, value, table, padding, output, log_sum, far_output, far_log_sum)
        ctx.layout = layout
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, table, padding, output, log_sum, far_output, far_log_sum = ctx.saved_tensors
        layout = ctx.layout
        with eager.full_precision(grad.device):
            if padding is not None:
                grad = grad.masked_fill((log_sum == -HIDDEN).unsqueeze(-1), 0.0)
            numbers = _hide(_numbers(table, layout), layout, above=0 if layout.causal else None)
            grad_query, grad_key, grad_value = (torch.zeros_like(empty_like(states)) for states in (query, key, value))
            for sequences, tokens in _sequences(padding, len(query), layout.keys):
                for queries in _blocks(layout, SPAN if layout.causal else layout.queries):
                    stop = layout.first + queries.stop if layout.causal else tokens.stop
                    keys = slice(tokens.start, min(tokens.stop, stop))
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
            grad_table = None
            if layout.learns:
                expected = (grad * output).sum(-1)
                grad_table = _near_gradient(query, key, value, table, padding, layout, grad, expected, log_sum)
                if far_output is not None and far_log_sum is not None:
                    mass = (far_log_sum - log_sum).exp_()
                    grad_table[:, -1] += (mass * ((grad * far_output).sum(-1) - expected)).sum((0, 2))
                # The gradients of a query's scores sum to zero.
                grad_table[:, 0] = -grad_table[:, 1:].sum(-1)
                if len(table) == 1:
                    grad_table = grad_table.sum(0, keepdim=True)
        return grad_query, grad_key, grad_value, grad_table, None, None


def _blocks(layout: _Layout, span: int) -> Iterator[slice]:
    for start in range(0, layout.queries, span):
        yield slice(start, min(start + span, layout.queries))


def _forward(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, layout: _Layout, queries: slice, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of some queries and keys; the latter very low where a query sees nothing."""
    if stop <= start:
        return torch.zeros_like(query), query.new_full(query.shape[:3], HIDDEN)
    keys = slice(start, stop)
    mask = _mask(numbers, layout, queries, keys)
    output, log_sum = fused.attend(query.flip(2), key[:, :, keys], value[:, :, keys], mask, layout.scale)
    return output.flip(2), log_sum.flip(2)


def _near_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    padding: Tensor | None,
    layout: _Layout,
    grad: Tensor,
    expected: Tensor,
    log_sum: Tensor,
) -> Tensor:
    """The table's gradient ``[heads, 2k + 1]`` but for its two ends, by the scores near the diagonal."""
    k, rows = layout.k, dense.ROWS
    plan = sized(
        Plan(
            queries=layout.queries, keys=layout.keys, offset=layout.first, causal=layout.causal, k=1, reach=k,
            local=True, span=rows, rows=rows, items=1, hides_only=False, scale=layout.scale,
        )
    )  # fmt: skip
    inside = table.clone()
    inside[:, [0, -1]] = HIDDEN
    if layout.causal:
        inside[:, k + 1 :] = HIDDEN
    inputs = Inputs(plan, query, key, value, padding, Tables(added=skewed(inside, plan)), seed=0)
    grad_skewed = inside.new_zeros(inputs.heads, *inputs.tables.added.shape[1:])  # type: ignore[union-attr]
    for part in inputs.parts():
        queries, keys, values = inputs.scaled_queries(part), inputs.keys(part), inputs.values(part)
        grads = inputs.queries(part, grad, "grads")
        torch.neg(expected[part.pick].flatten(0, 1), out=grads[..., inputs.dim])
        for tile in plan.tiles(part.block):
            scores = inputs.scores(part, queries[:, tile.rows], keys[:, : tile.width], None, tile)
            weights = softmax(scores)
            near_sum = log_sum_exp(scores, weights)
            grads[:, tile.rows].mul_((near_sum - log_sum[part.pick].flatten(0, 1)[:, tile.rows]).exp_().unsqueeze(-1))
            grad_scores = product("grad scores", grads[:, tile.rows], values[:, : tile.width]).mul_(weights)
            by_head = grad_scores.unflatten(0, part.by_head)
            skewed_part(grad_skewed[part.heads], plan, tile).add_(by_head.sum(0))
    before, _ = columns(plan)
    return collect(grad_skewed, k, before).sum(1)
