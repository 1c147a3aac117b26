"""The forward pass of the tiled engines: see `tiled`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hf_relpos.engines.cpu import tails
from hf_relpos.engines.cpu.layout import Inputs, Part, empty_like, log_sum_exp, matmul, softmax, times
from hf_relpos.engines.cpu.tiles import HIDDEN, Tile


class Statistics(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        output: ``[batch, heads, queries, dim]``.
        log_sum: the log-sum-exp of each query's scores, ``[batch, heads, queries]``; None if there are neither tails
            nor padding.
        window_log_sum: the same for the keys of the window alone; None if there are no others.
        right_number: what is added to a query's scores in right tails; None if there is nothing, or no such tail.
        right_log_sum: the log-sum-exp of the right tails alone; None if there are none.
        right_output: the right tails' own output, less the value vector that all pairs share; None like it.
    """

    output: Tensor
    log_sum: Tensor | None = None
    window_log_sum: Tensor | None = None
    right_number: Tensor | None = None
    right_log_sum: Tensor | None = None
    right_output: Tensor | None = None


class Forward:
    """The output and the log-sum-exps, a part at a time."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.output = empty_like(inputs.query)
        self.has_tails = any(True for _ in inputs.plan.tails())
        by_query = inputs.query.shape[:3]
        # The sums of the queries' kept weights.
        has_total = inputs.plan.dropout > 0 and inputs.tables.far_value is not None
        self.total = inputs.query.new_empty(by_query) if has_total else None
        has_log_sum = self.has_tails or inputs.hidden is not None
        self.log_sum = inputs.query.new_empty(by_query) if has_log_sum else None

    def part(self, part: Part) -> None:
        """Do a part."""
        inputs = self.inputs
        queries = inputs.by_query(part, inputs.query, "queries")
        keys, values, gate = inputs.keys(part), inputs.values(part), inputs.gate(part)
        for tile in inputs.plan.tiles(part.block):
            self._tile(part, tile, queries, keys[:, : tile.width], values[:, : tile.width], gate)

    def finish(self) -> Statistics:
        """Add what is not in the windows, once all parts are done."""
        inputs, output, log_sum = self.inputs, self.output, self.log_sum
        window_log_sum = right_number = right_output = right_log_sum = None
        if log_sum is not None and self.has_tails:
            window_log_sum = log_sum.clone()
            right_number = None if inputs.plan.causal else inputs.right_number()
            right_output, right_log_sum = tails.attend(inputs, right_number, output, log_sum)
        if inputs.tables.far_value is not None:
            output.add_(times(inputs.tables.far_value.unsqueeze(1), inputs.tables.gate, self.total))
        if log_sum is not None and inputs.hidden is not None:
            blind = log_sum < HIDDEN / 2
            output.masked_fill_(blind.unsqueeze(-1), 0.0)
            # With this, their weights in the tails come out as zero in the backward pass.
            log_sum.masked_fill_(blind, -HIDDEN)
        return Statistics(output, log_sum, window_log_sum, right_number, right_log_sum, right_output)

    def _tile(self, part: Part, tile: Tile, queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor | None) -> None:
        """A tile's part of the output, of the log-sum-exps and of the totals."""
        inputs, at = self.inputs, tile.rows
        queries, gate = queries[:, at], None if gate is None else gate[:, at]
        rows = inputs.rows(part, queries)
        if rows is not None and gate is not None:
            rows = rows * gate
        scores = inputs.scores(part, queries, keys, rows, tile)
        weights = softmax(scores)
        if self.log_sum is not None:
            self.log_sum[part.pick][..., at] = log_sum_exp(scores, weights).unflatten(0, part.by_head)
        kept = inputs.kept(part, tile, weights)
        if kept is not None:
            weights.mul_(kept)
        if self.total is not None:
            self.total[part.pick][..., at] = weights.sum(-1).unflatten(0, part.by_head)
        output = matmul("tile output", weights, values)
        if inputs.table_value is not None:
            shares = inputs.sums(weights, tile, "shares")
            if gate is not None:
                shares.mul_(gate)
            output.baddbmm_(shares, inputs.table_value[part.table_items])
        self.output[part.pick][:, :, at] = output.unflatten(0, part.by_head)
