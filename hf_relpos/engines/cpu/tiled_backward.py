"""The backward pass of the tiled engines: see `tiled`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines.cpu import tails
from hf_relpos.engines.cpu.layout import (
    Inputs,
    Part,
    add_value,
    dots,
    empty_like,
    matmul,
    product,
    scratch_like,
    softmax,
    times,
)
from hf_relpos.engines.cpu.tables import Tables
from hf_relpos.engines.cpu.tiled_forward import Statistics
from hf_relpos.engines.cpu.tiles import HIDDEN, Tile, scratch, skewed_part


class _State(NamedTuple):
    """What a part in the backward pass reads, and its gradients per column; ``[items, queries or columns, ...]``.

    Attributes:
        queries: the queries.
        keys: the window's keys.
        values: the window's values.
        gate: the queries' gates, or None.
        grads: the gradients of the outputs, times the window's share of the queries' weights.
        shared: what all pairs of a query share in the gradients of their (kept) weights, times the same; or None.
        expected: the sums of the queries' weights times the gradients of those.
        grad_keys: of the columns.
        grad_values: of the columns.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    gate: Tensor | None
    grads: Tensor
    shared: Tensor | None
    expected: Tensor
    grad_keys: Tensor
    grad_values: Tensor


class Backward:
    """The gradients, a part at a time."""

    def __init__(self, inputs: Inputs, learn: Tables, grad: Tensor, statistics: Statistics) -> None:
        self.inputs, self.statistics = inputs, statistics
        tables, log_sum = inputs.tables, statistics.log_sum
        if inputs.hidden is not None and log_sum is not None:
            grad = grad.masked_fill((log_sum == -HIDDEN).unsqueeze(-1), 0.0)
        self.grad, self.output, self.total = grad, statistics.output, None
        # What the value vector that all pairs share adds to the gradients of a query's weights, ``[.., queries, 1]``.
        self.by_far = None
        if tables.far_value is not None and inputs.plan.dropout > 0:
            self.total = torch.empty_like(statistics.output[..., 0])
            self.by_far = times(grad @ tables.far_value.unsqueeze(-1), tables.gate)
        elif tables.far_value is not None:
            # Weights sum to one: a value vector that all pairs share changes nothing but the output.
            self.output = scratch_like("core output", statistics.output).copy_(statistics.output)
            add_value(self.output, tables.far_value.unsqueeze(1), tables.gate, -1.0)
        self.expected = dots(grad, self.output)
        self.share: Tensor | None = None
        if log_sum is not None and statistics.window_log_sum is not None:
            # The window's weights are those of a softmax over it, times its share of a query's weight.
            self.share = (statistics.window_log_sum - log_sum).exp_()
        self.grad_query, self.grad_key, self.grad_value = (
            empty_like(states) for states in (inputs.query, inputs.key, inputs.value)
        )
        # Each query is in one part, but a key may be in several, or none.
        self.once = [block.window for block in inputs.plan.blocks()] == [slice(0, inputs.plan.keys)]
        if not self.once:
            self.grad_key.zero_()
            self.grad_value.zero_()

        def zeros(table: Tensor | None, learns: Any, first: int) -> Tensor | None:
            return table.new_zeros(first, *table.shape[1:]) if table is not None and learns else None

        self.grad_table_query = zeros(tables.query, learn.query, inputs.items)
        self.grad_bias = zeros(tables.bias, learn.bias, inputs.items)
        self.grad_table_value = zeros(tables.value, learn.value, inputs.items)
        self.grad_far = zeros(tables.far_value, learn.far_value, inputs.heads)
        self.grad_added = zeros(tables.added, learn.added, inputs.heads)
        self.grad_gate = torch.zeros_like(tables.gate) if tables.gate is not None and learn.gate else None
        self.rows_learn = tables.has_rows and (
            tables.query is not None or self.grad_bias is not None or self.grad_gate is not None
        )

    def grad_tables(self) -> Tables:
        """The gradients of the tables, once all is done."""
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
            far_value=self.grad_far,
            gate=self.grad_gate,
            added=added,
        )

    def part(self, part: Part) -> None:
        """Do a part."""
        block, by_head = part.block, part.by_head
        state = self._state(part)
        for tile in self.inputs.plan.tiles(block):
            self._tile(part, tile, state)
        for grad, columns in ((self.grad_key, state.grad_keys), (self.grad_value, state.grad_values)):
            by_window = columns[:, block.filled].unflatten(0, by_head)
            if self.once:
                grad[part.window] = by_window
            else:
                grad[part.window] += by_window

    def _state(self, part: Part) -> _State:
        inputs = self.inputs
        grads, expected = self.grad[part.pick], self.expected[part.pick].unsqueeze(-1)
        by_far = None if self.by_far is None else self.by_far[part.pick]
        shared = by_far if inputs.plan.dropout > 0 else -expected
        if self.share is None:
            grads = inputs.by_query(part, self.grad, "grads")
        else:
            share = self.share[part.pick].unsqueeze(-1)
            grads = torch.mul(grads, share, out=scratch("grads", grads, *grads.shape)).flatten(0, 1)
            shared = None if shared is None else shared * share
        queries = inputs.by_query(part, inputs.query, "queries")
        size = (len(queries), part.block.width, inputs.dim)
        return _State(
            queries=queries,
            keys=inputs.keys(part),
            values=inputs.values(part),
            gate=inputs.gate(part),
            grads=grads,
            shared=None if shared is None else shared.flatten(0, 1),
            expected=expected.flatten(0, 1),
            grad_keys=scratch("grad keys", queries, *size),
            grad_values=scratch("grad values", queries, *size),
        )

    def _tile(self, part: Part, tile: Tile, state: _State) -> None:
        inputs, scale, at = self.inputs, self.inputs.plan.scale, tile.rows
        queries, keys, values = state.queries[:, at], state.keys[:, : tile.width], state.values[:, : tile.width]
        grads, gate = state.grads[:, at], None if state.gate is None else state.gate[:, at]
        rows = inputs.rows(part, queries)
        gated = rows if rows is None or gate is None else rows * gate
        scores = inputs.scores(part, queries, keys, gated, tile)
        weights = softmax(scores)
        kept = inputs.kept(part, tile, weights)
        used = weights if kept is None else kept.mul_(weights)
        if self.total is not None:
            self.total[part.pick][..., at] = used.sum(-1).unflatten(0, part.by_head)
        _add_product(state.grad_values, used, grads, 1.0, first=at.start == 0)
        grad_scores = product("grad scores", grads, values)
        if state.shared is not None:
            grad_scores.add_(state.shared[:, at])
        if inputs.table_value is not None:
            self._values(part, tile, grads, gate, used, grad_scores)
        grad_scores.mul_(used)
        if kept is not None:
            grad_scores.addcmul_(weights, state.expected[:, at], value=-1.0)
        grad_query = matmul("tile output", grad_scores, keys, scale)
        _add_product(state.grad_keys, grad_scores, queries, scale, first=at.start == 0)
        if self.rows_learn and rows is not None:
            self._rows(part, tile, rows, inputs.sums(grad_scores, tile, "grad rows"), queries, gate, grad_query)
        self.grad_query[part.pick][:, :, at] = grad_query.unflatten(0, part.by_head)
        if self.grad_added is not None:
            by_head = grad_scores.unflatten(0, part.by_head)
            skewed_part(self.grad_added[part.heads], inputs.plan, tile).add_(by_head.sum(0))

    def _values(
        self, part: Part, tile: Tile, grads: Tensor, gate: Tensor | None, used: Tensor, grad_scores: Tensor
    ) -> None:
        """The value table's part in a tile: in the gradients of its weights, and the table's own gradient."""
        inputs, items = self.inputs, part.table_items
        table: Tensor = inputs.table_value[items]  # type: ignore[index]
        by_offset = product("by offset", grads, table)
        shares = inputs.sums(used, tile, "shares")
        self._add_to_gate(part, tile, by_offset, shares)
        inputs.add(grad_scores, by_offset if gate is None else by_offset.mul_(gate), tile)
        if self.grad_table_value is not None:
            gated = shares if gate is None else shares.mul_(gate)
            self.grad_table_value[items].baddbmm_(gated.transpose(1, 2), grads)

    def _rows(
        self,
        part: Part,
        tile: Tile,
        rows: Tensor,
        grad_rows: Tensor,
        queries: Tensor,
        gate: Tensor | None,
        grad_query: Tensor,
    ) -> None:
        """The gradients behind what is added to the scores of a tile, whose own are not needed afterwards."""
        inputs, items, scale = self.inputs, part.table_items, self.inputs.plan.scale
        self._add_to_gate(part, tile, grad_rows, rows)
        if gate is not None:
            grad_rows.mul_(gate)
        if self.grad_bias is not None:
            self.grad_bias[items].add_(grad_rows.sum(1))
        if inputs.table_query is not None:
            grad_query.baddbmm_(grad_rows, inputs.table_query[items], alpha=scale)
            if self.grad_table_query is not None:
                self.grad_table_query[items].baddbmm_(grad_rows.transpose(1, 2), queries, alpha=scale)

    def _add_to_gate(self, part: Part, tile: Tile, grad: Tensor, factor: Tensor) -> None:
        """Add to the gradients of a tile's gates, if they learn."""
        if self.grad_gate is not None:
            by_query = (grad * factor).sum(-1).unflatten(0, part.by_head)
            self.grad_gate[part.pick][..., tile.rows].add_(by_query)

    def finish(self) -> None:
        """Add what does not go through the windows, once all parts are done."""
        statistics, log_sum = self.statistics, self.statistics.log_sum
        self._far()
        if log_sum is None or statistics.window_log_sum is None:
            return
        if statistics.right_log_sum is not None and statistics.right_output is not None:
            mass = (statistics.right_log_sum - log_sum).exp_()
            self._right(mass, dots(self.grad, statistics.right_output).sub_(self.expected).mul_(mass))
        tails.backward(
            self.inputs, statistics.right_number, self.grad, self.output, log_sum,
            self.grad_query, self.grad_key, self.grad_value,
        )  # fmt: skip

    def _far(self) -> None:
        """The gradients of the value vector all pairs get, times the sum of a query's weights (1, or ``total``)."""
        far = self.inputs.tables.far_value
        if far is None:
            return
        grad = self.grad if self.total is None else self.grad * self.total.unsqueeze(-1)
        if self.grad_gate is not None:
            self.grad_gate += (grad @ far.unsqueeze(-1)).squeeze(-1)
        if self.grad_far is not None:
            self.grad_far += times(grad, self.inputs.tables.gate).sum((0, 2))

    def _right(self, mass: Tensor, number: Tensor) -> None:
        """The gradients of the tables' last entries, which the right tails share.

        Args:
            mass: the right tails' part of the queries' weights, ``[batch, heads, queries]``.
            number: the gradients of the numbers that are added to their scores, like it.
        """
        inputs, tables = self.inputs, self.inputs.tables
        heads, scale = inputs.heads, inputs.plan.scale
        if self.grad_added is not None:
            self.grad_added[:, 0, -1] += number.sum((0, 2))
        if self.rows_learn:
            if self.grad_gate is not None:
                self.grad_gate += number * inputs.last_rows()  # type: ignore[operator]
            gated = number if tables.gate is None else number * tables.gate
            if self.grad_bias is not None:
                self.grad_bias[:heads, -1] += gated.sum((0, 2))
            if tables.query is not None:
                self.grad_query.addcmul_(gated.unsqueeze(-1), tables.query[:, -1:], value=scale)
            if self.grad_table_query is not None:
                self.grad_table_query[:heads, -1].add_(_sum_of(gated, inputs.query), alpha=scale)
        if tables.value is not None:
            if self.grad_gate is not None:
                self.grad_gate += mass * (self.grad @ tables.value[:, -1, :, None]).squeeze(-1)
            if self.grad_table_value is not None:
                gated = mass if tables.gate is None else mass * tables.gate
                self.grad_table_value[:heads, -1] += _sum_of(gated, self.grad)


def _sum_of(numbers: Tensor, states: Tensor) -> Tensor:
    """The sum of states ``[batch, heads, queries, dim]`` times a number each, ``[heads, dim]``."""
    return (numbers.unsqueeze(-2) @ states).sum(0).squeeze(-2)


def _add_product(columns: Tensor, pairs: Tensor, states: Tensor, factor: float, first: bool) -> None:
    """Add the products of a tile's numbers per pair and what its rows have to what its columns have.

    Args:
        columns: ``[items, columns of the block, dim]``; where ``first``, with any content.
        pairs: ``[items, rows, columns of the tile]``.
        states: ``[items, rows, dim]``.
        factor: of the products.
        first: whether nothing has been added yet.
    """
    some = columns[:, : pairs.shape[-1]]
    if first:
        columns[:, pairs.shape[-1] :] = 0.0
    some.baddbmm_(pairs.transpose(1, 2), states, beta=0.0 if first else 1.0, alpha=factor)
