"""Attention tile by tile, with the tails of a block left to PyTorch's fused operator; what `dense` and `banded` share.

Within a block, scores exist for one tile at a time, and are computed again in the backward pass: a window's weights are
its own softmax, times its share of the query's weight, which the log-sum-exps give. What the relative terms add to a
tile is a few numbers per query, at the offsets near the diagonal, which a strided view of the tile shows as columns;
plus one number per query for all keys to the right of them. Constants of a query change no weight, so every table comes
with its leftmost entry subtracted, and nothing is added to the left.

What lies beyond the windows is added by `tails`, which leaves it to the fused operator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_relpos.engines import eager, tails
from hf_relpos.engines.layout import Inputs, Part, empty_like, log_sum_exp, product, softmax
from hf_relpos.engines.tables import Tables
from hf_relpos.engines.tiles import HIDDEN, Plan, Tile, scratch, skewed_part


def attend(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, plan: Plan, tables: Tables) -> Tensor:
    """Attention ``[batch, heads, queries, dim]`` with the terms of the tables.

    Args:
        query: ``[batch, heads, queries, dim]``, float32 or float64.
        key: ``[batch, heads, keys, dim]``.
        value: like ``key``.
        padding: bool ``[batch, keys]``, True where there is a token, or None.
        plan: the geometry.
        tables: what is added.
    """
    inputs = (query, key, value, *tables)
    learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    return _Tiled.apply(query, key, value, padding, plan, learns, *tables)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        plan: Plan,
        learns: bool,
        *tables: Tensor | None,
    ) -> Tensor:
        seed = int(torch.randint(2**62, (), device="cpu")) if plan.dropout > 0 else 0
        inputs = Inputs(plan, query, key, value, padding, Tables(*tables), seed)
        run = _Forward(inputs, learns)
        for part in inputs.parts():
            run.part(part)
        run.finish()
        ctx.save_for_backward(query, key, value, padding, *run.statistics(), *tables)
        ctx.plan, ctx.seed = plan, seed
        return run.output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, padding, *saved = ctx.saved_tensors
        count = len(Statistics._fields)
        statistics, tables = Statistics(*saved[:count]), saved[count:]
        with eager.full_precision(grad.device):
            inputs = Inputs(ctx.plan, query, key, value, padding, Tables(*tables), ctx.seed)
            learn = Tables(*ctx.needs_input_grad[6:])
            run = _Backward(inputs, learn, grad, statistics)
            for part in inputs.parts():
                run.part(part)
            run.tails()
        return run.grad_query, run.grad_key, run.grad_value, None, None, None, *run.grad_tables()


class Statistics(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        output: ``[batch, heads, queries, dim]``.
        log_sum: the log-sum-exp of each query's scores, ``[batch, heads, queries]``; None if there are neither tails
            nor padding.
        window_log_sum: the same for the keys of the window alone; None if there are no others.
        right_number: what is added to a query's scores in the right tails, in the same shape; None if there is nothing.
        right_log_sum: the log-sum-exp of the right tails alone, or None.
        right_output: the right tails' own output, or None.
    """

    output: Tensor
    log_sum: Tensor | None
    window_log_sum: Tensor | None
    right_number: Tensor | None
    right_log_sum: Tensor | None
    right_output: Tensor | None


class _Forward:
    """The output and the log-sum-exps, a part at a time."""

    def __init__(self, inputs: Inputs, learns: bool) -> None:
        self.inputs, self.learns = inputs, learns
        query, tables = inputs.query, inputs.tables
        self.output = empty_like(query)
        by_query = query.shape[:3]
        self.has_tails = any(True for _ in inputs.plan.tails())
        self.log_sum = query.new_empty(by_query) if self.has_tails or inputs.padding is not None else None
        has_right = any(tail.right for tail in inputs.plan.tails())
        has_number = has_right and (tables.has_rows or tables.added is not None)
        self.right_number = query.new_empty(by_query) if has_number else None
        self.window_log_sum: Tensor | None = None
        # Of the right tails; the gradient of a number that they share needs them. One side is enough: the gradients of
        # a query's scores sum to zero, so the other one's follows.
        self.right_output = torch.zeros_like(self.output) if has_right and learns else None
        self.right_log_sum = query.new_full(by_query, float("-inf")) if has_right and learns else None

    def statistics(self) -> Statistics:
        """What the backward pass needs."""
        return Statistics(
            self.output, self.log_sum, self.window_log_sum, self.right_number, self.right_log_sum, self.right_output
        )

    def part(self, part: Part) -> None:
        """Do a part."""
        inputs, plan, block = self.inputs, self.inputs.plan, part.block
        queries = inputs.scaled_queries(part)
        keys, values, gate = inputs.keys(part), inputs.values(part), inputs.gate(part)
        output = scratch("output", queries, *queries.shape[:2], inputs.dim)
        log_sum = None if self.log_sum is None else scratch("log_sum", queries, *queries.shape[:2])
        # The sum of each query's weights.
        total = scratch("total", queries, *queries.shape[:2], 1) if plan.dropout > 0 else queries.new_ones(())
        for tile in plan.tiles(block):
            at = tile.rows
            output[:, at] = self._tile(
                part,
                tile,
                queries[:, at],
                keys[:, : tile.width],
                values[:, : tile.width],
                None if gate is None else gate[:, at],
                None if log_sum is None else log_sum[:, at],
                total[:, at] if plan.dropout > 0 else total,
            )
        if inputs.far_value is not None:
            output.addcmul_(inputs.far_value[part.table_items, None], total if gate is None else total * gate)
        number = None if self.right_number is None else inputs.right_number(part, queries, gate)
        if self.right_number is not None and number is not None:
            self.right_number[part.pick] = number
        self.output[part.pick] = output.unflatten(0, part.by_head)
        if self.log_sum is not None and log_sum is not None:
            self.log_sum[part.pick] = log_sum.unflatten(0, part.by_head)

    def finish(self) -> None:
        """Add the tails, once all parts are done."""
        if self.log_sum is None:
            return
        if self.has_tails:
            self.window_log_sum = self.log_sum.clone() if self.learns else None
            tails.attend(
                self.inputs, self.right_number, self.output, self.log_sum, self.right_output, self.right_log_sum
            )
        if self.inputs.padding is not None:
            blind = self.log_sum < HIDDEN / 2
            self.output.masked_fill_(blind.unsqueeze(-1), 0.0)
            # With this, their weights in the tails come out as zero in the backward pass.
            self.log_sum.masked_fill_(blind, -HIDDEN)

    def _tile(
        self,
        part: Part,
        tile: Tile,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        gate: Tensor | None,
        log_sum: Tensor | None,
        total: Tensor,
    ) -> Tensor:
        """The output of a tile; fills in ``log_sum`` if it is there, and ``total`` if there is dropout."""
        inputs, dim = self.inputs, self.inputs.dim
        rows = inputs.rows(part, queries)
        if rows is not None and gate is not None:
            rows = rows * gate
        scores = inputs.scores(part, queries, keys, rows, tile)
        weights = softmax(scores)
        if log_sum is not None:
            log_sum.copy_(log_sum_exp(scores, weights))
        kept = inputs.kept(part, tile, weights)
        if kept is not None:
            torch.sum(weights.mul_(kept), -1, keepdim=True, out=total)
        output = scratch("tile output", weights, *weights.shape[:2], dim)
        torch.bmm(weights, values[..., :dim], out=output)
        if inputs.table_value is not None:
            shares = inputs.sums(weights, tile, "shares")
            if gate is not None:
                shares.mul_(gate)
            output.baddbmm_(shares, inputs.table_value[part.table_items])
        return output


class _State(NamedTuple):
    """A part in the backward pass: what it reads, and where its gradients go; ``[items, queries or columns, ...]``."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    gate: Tensor | None
    log_sum: Tensor | None
    grads: Tensor
    window_grads: Tensor
    expected: Tensor
    total: Tensor | None
    grad_query: Tensor
    grad_keys: Tensor
    grad_values: Tensor
    grad_gate: Tensor | None


class _Backward:
    """The gradients, a part at a time."""

    def __init__(self, inputs: Inputs, learn: Tables, grad: Tensor, statistics: Statistics) -> None:
        self.inputs, self.grad, self.statistics = inputs, grad, statistics
        self.grad_query, self.grad_key, self.grad_value = (
            empty_like(states) for states in (inputs.query, inputs.key, inputs.value)
        )
        # Each query is in one part, but a key may be in several, or none.
        self.once = [block.window for block in inputs.plan.blocks()] == [slice(0, inputs.plan.keys)]
        if not self.once:
            self.grad_key.zero_()
            self.grad_value.zero_()
        tables = inputs.tables

        def zeros(table: Tensor | None, learns: Any, first: int) -> Tensor | None:
            return table.new_zeros(first, *table.shape[1:]) if table is not None and learns else None

        self.grad_table_query = zeros(tables.query, learn.query, inputs.items)
        self.grad_bias = zeros(tables.bias, learn.bias, inputs.items)
        self.grad_table_value = zeros(tables.value, learn.value, inputs.items)
        self.grad_far = zeros(tables.far_value, learn.far_value, inputs.items)
        self.grad_added = zeros(tables.added, learn.added, inputs.heads)
        self.grad_gate = torch.zeros_like(tables.gate) if tables.gate is not None and learn.gate else None
        self.rows_learn = tables.has_rows and (
            tables.query is not None or self.grad_bias is not None or self.grad_gate is not None
        )

    def grad_tables(self) -> Tables:
        """The gradients of the tables, once all parts are done."""
        heads, added = self.inputs.heads, self.grad_added

        def per_head(grad: Tensor | None) -> Tensor | None:
            return None if grad is None else grad.unflatten(0, (-1, heads)).sum(0)

        if added is not None and self.inputs.tables.added is not None:
            # The gradients of a query's scores sum to zero: what is missing is the left tail's.
            added[:, 0, 0] -= added.sum((1, 2))
            if len(self.inputs.tables.added) == 1:
                added = added.sum(0, keepdim=True)
        return Tables(
            query=per_head(self.grad_table_query),
            bias=per_head(self.grad_bias),
            value=per_head(self.grad_table_value),
            far_value=per_head(self.grad_far),
            gate=self.grad_gate,
            added=added,
        )

    def part(self, part: Part) -> None:
        """Do a part."""
        plan, block, by_head = self.inputs.plan, part.block, part.by_head
        state = self._state(part)
        for tile in plan.tiles(block):
            self._tile(part, tile, state)
        self._far(part, state)
        self.grad_query[part.pick] = state.grad_query.mul_(plan.scale).unflatten(0, by_head)
        if self.statistics.right_log_sum is not None:
            self._right_tail(part, state)
        window = (part.sequences, part.heads, block.window)
        for grad, windows in ((self.grad_key, state.grad_keys), (self.grad_value, state.grad_values)):
            by_window = windows[:, block.filled].unflatten(0, by_head)
            if self.once:
                grad[window] = by_window
            else:
                grad[window] += by_window
        if self.grad_gate is not None and state.grad_gate is not None:
            self.grad_gate[part.pick] = state.grad_gate.squeeze(-1).unflatten(0, by_head)

    def _state(self, part: Part) -> _State:
        inputs, plan, dim, statistics = self.inputs, self.inputs.plan, self.inputs.dim, self.statistics
        log_sum = None if statistics.log_sum is None else statistics.log_sum[part.pick].flatten(0, 1)
        output = statistics.output[part.pick].flatten(0, 1)
        gate = inputs.gate(part)
        grads = inputs.queries(part, self.grad, "grads")
        grad, shared = grads[..., :dim], grads[..., dim:]
        if inputs.padding is not None and log_sum is not None:
            grad.masked_fill_((log_sum == -HIDDEN).unsqueeze(-1), 0.0)
        expected = torch.mul(grad, output, out=scratch("grad query", grad, *grad.shape)).sum(-1, keepdim=True)
        # What all pairs of a query share in the gradients of their weights, or with dropout, of their kept weights.
        torch.neg(expected, out=shared) if plan.dropout == 0 else shared.zero_()
        if inputs.far_value is not None:
            by_far = torch.bmm(grad, inputs.far_value[part.table_items, :, None])
            shared.add_(by_far if gate is None else by_far * gate)
        window_grads = grads
        if statistics.window_log_sum is not None and log_sum is not None:
            # The window's weights are those of a softmax over it, times its share of a query's weight.
            share = (statistics.window_log_sum[part.pick].flatten(0, 1) - log_sum).exp_().unsqueeze(-1)
            window_grads = torch.mul(grads, share, out=scratch("window grads", grads, *grads.shape))
        queries = inputs.scaled_queries(part)
        size = (len(queries), part.block.width, dim)
        return _State(
            queries=queries,
            keys=inputs.keys(part),
            values=inputs.values(part),
            gate=gate,
            log_sum=log_sum,
            grads=grads,
            window_grads=window_grads,
            expected=expected,
            total=scratch("total", queries, *queries.shape[:2], 1) if plan.dropout > 0 else None,
            grad_query=scratch("grad query", queries, *queries.shape[:2], dim),
            grad_keys=scratch("grad keys", queries, *size).zero_(),
            grad_values=scratch("grad values", queries, *size).zero_(),
            grad_gate=None if self.grad_gate is None else queries.new_zeros(*queries.shape[:2], 1),
        )

    def _tile(self, part: Part, tile: Tile, state: _State) -> None:
        inputs, dim, at = self.inputs, self.inputs.dim, tile.rows
        queries, keys = state.queries[:, at], state.keys[:, : tile.width]
        grads, gate = state.window_grads[:, at], None if state.gate is None else state.gate[:, at]
        rows = inputs.rows(part, queries)
        gated = rows if rows is None or gate is None else rows * gate
        scores = inputs.scores(part, queries, keys, gated, tile)
        weights = softmax(scores)
        kept = inputs.kept(part, tile, weights)
        used = weights if kept is None else kept.mul_(weights)
        if state.total is not None:
            torch.sum(used, -1, keepdim=True, out=state.total[:, at])
        state.grad_values[:, : tile.width].baddbmm_(used.transpose(1, 2), grads[..., :dim])
        grad_scores = product("grad scores", grads, state.values[:, : tile.width])
        if inputs.table_value is not None:
            self._values(part, tile, state, used, grad_scores)
        grad_scores.mul_(used)
        if kept is not None:
            grad_scores.addcmul_(weights, state.expected[:, at], value=-1.0)
        grad_query = scratch("tile output", queries, *queries.shape[:2], dim)
        torch.bmm(grad_scores, keys[..., :dim], out=grad_query)
        state.grad_keys[:, : tile.width].baddbmm_(grad_scores.transpose(1, 2), queries[..., :dim])
        if self.rows_learn and rows is not None:
            grad_rows = inputs.sums(grad_scores, tile, "grad rows")
            grad_gate = None if state.grad_gate is None else state.grad_gate[:, at]
            self._rows(part, slice(None), rows, grad_rows, queries, gate, grad_query, grad_gate)
        state.grad_query[:, at] = grad_query
        if self.grad_added is not None:
            by_head = grad_scores.unflatten(0, part.by_head)
            skewed_part(self.grad_added[part.heads], inputs.plan, tile).add_(by_head.sum(0))

    def _values(self, part: Part, tile: Tile, state: _State, used: Tensor, grad_scores: Tensor) -> None:
        """The value table's part in a tile: in the gradients of its weights, and the table's own gradient."""
        inputs, dim, at, items = self.inputs, self.inputs.dim, tile.rows, part.table_items
        table: Tensor = inputs.table_value[items]  # type: ignore[index]
        grad, gate = state.window_grads[:, at, :dim], None if state.gate is None else state.gate[:, at]
        by_offset = scratch("by offset", grad, *grad.shape[:2], table.shape[1])
        torch.bmm(grad, table.transpose(1, 2), out=by_offset)
        shares = inputs.sums(used, tile, "shares")
        if state.grad_gate is not None:
            state.grad_gate[:, at].add_((by_offset * shares).sum(-1, keepdim=True))
        inputs.add(grad_scores, by_offset if gate is None else by_offset.mul_(gate), tile)
        if self.grad_table_value is not None:
            gated = shares if gate is None else shares.mul_(gate)
            self.grad_table_value[items].baddbmm_(gated.transpose(1, 2), grad)

    def _far(self, part: Part, state: _State) -> None:
        """The gradients of the value vector all pairs get, times the sum of a query's weights (1, or ``total``)."""
        inputs, grad = self.inputs, state.grads[..., : self.inputs.dim]
        if inputs.far_value is None:
            return
        weighted = grad if state.total is None else grad * state.total
        if state.grad_gate is not None:
            state.grad_gate.add_(torch.bmm(weighted, inputs.far_value[part.table_items, :, None]))
        if self.grad_far is not None:
            gated = weighted if state.gate is None else weighted * state.gate
            self.grad_far[part.table_items].add_(gated.sum(1))

    def _rows(
        self,
        part: Part,
        entries: slice,
        rows: Tensor,
        grad_rows: Tensor,
        queries: Tensor,
        gate: Tensor | None,
        grad_query: Tensor,
        grad_gate: Tensor | None,
    ) -> None:
        """The gradients behind some entries of rows over offsets, whose own gradients are not needed afterwards."""
        inputs, items = self.inputs, part.table_items
        if grad_gate is not None:
            grad_gate.add_((grad_rows * rows).sum(-1, keepdim=True))
        if gate is not None:
            grad_rows.mul_(gate)
        if self.grad_bias is not None:
            self.grad_bias[items, entries].add_(grad_rows.sum(1))
        if inputs.table_query is not None:
            grad_query.baddbmm_(grad_rows, inputs.table_query[items, entries])
            if self.grad_table_query is not None:
                by_entry = grad_rows.transpose(1, 2)
                self.grad_table_query[items, entries].baddbmm_(by_entry, queries[..., : inputs.dim])

    def tails(self) -> None:
        """Add what goes through the tails to the gradients of queries, keys and values, once all parts are done."""
        grad, log_sum = self.grad, self.statistics.log_sum
        if log_sum is None or self.statistics.window_log_sum is None:
            return
        if self.inputs.padding is not None:
            grad = grad.masked_fill((log_sum == -HIDDEN).unsqueeze(-1), 0.0)
        tails.backward(
            self.inputs, self.statistics.right_number, grad, self.statistics.output, log_sum,
            self.grad_query, self.grad_key, self.grad_value,
        )  # fmt: skip

    def _right_tail(self, part: Part, state: _State) -> None:
        """The gradients of the tables' last entries, which the right tails share."""
        inputs, dim, items = self.inputs, self.inputs.dim, part.table_items
        right_log_sum, right_output = self.statistics.right_log_sum, self.statistics.right_output
        if right_log_sum is None or right_output is None or state.log_sum is None:
            raise RuntimeError("The right tails were not kept in the forward pass.")
        grad, gate, last = state.grads[..., :dim], state.gate, slice(-1, None)
        mass = (right_log_sum[part.pick].flatten(0, 1) - state.log_sum).exp_().unsqueeze(-1)
        product = scratch("grad query", grad, *grad.shape)
        torch.mul(grad, right_output[part.pick].flatten(0, 1), out=product)
        number = mass * (product.sum(-1, keepdim=True) - state.expected)
        if self.grad_added is not None:
            self.grad_added[part.heads, 0, -1] += number.unflatten(0, part.by_head).sum((0, 2, 3))
        rows = inputs.last_rows(part, state.queries)
        if self.rows_learn and rows is not None:
            grad_query = scratch("grad query", grad, *grad.shape).zero_()
            self._rows(part, last, rows, number, state.queries, gate, grad_query, state.grad_gate)
            self.grad_query[part.pick] += grad_query.mul_(inputs.plan.scale).unflatten(0, part.by_head)
        if inputs.table_value is not None:
            if state.grad_gate is not None:
                by_last = torch.bmm(grad, inputs.table_value[items, last].transpose(1, 2))
                state.grad_gate.add_(by_last.mul_(mass))
            if self.grad_table_value is not None:
                gated = mass if gate is None else mass * gate
                self.grad_table_value[items, last].baddbmm_(gated.transpose(1, 2), grad)
