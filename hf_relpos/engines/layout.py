"""The inputs of the tiled engines as they are worked on: sequences and heads as one dimension, in scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines.tables import Tables
from hf_relpos.engines.tiles import HIDDEN, Block, Plan, Tile, band, scratch, skewed, skewed_part


class Part(NamedTuple):
    """A block of queries, for some of the sequences, or some heads of one sequence."""

    sequences: slice
    heads: slice
    block: Block

    @property
    def pick(self) -> tuple[slice, slice, slice]:
        """Where the part's queries are in ``[batch, heads, queries, ...]``."""
        return self.sequences, self.heads, self.block.queries

    @property
    def table_items(self) -> slice:
        """Where the part's items are in a table per item."""
        count = (self.sequences.stop - self.sequences.start) * (self.heads.stop - self.heads.start)
        return slice(self.heads.start, self.heads.start + count)

    @property
    def by_head(self) -> tuple[int, int]:
        """How to unflatten the items into sequences and heads."""
        return -1, self.heads.stop - self.heads.start


class Inputs:
    """The inputs of a call, and how they are laid out for a part.

    In the layout, sequences and heads are one dimension, ``items``. Queries and keys have one more number each than
    the heads are wide, whose product hides the columns that have no key or padding: 1 times 0 or ``HIDDEN``. In the
    backward pass the output's gradients and the values have one more too: what a query's weights share, times 1.
    """

    def __init__(
        self,
        plan: Plan,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        tables: Tables,
        seed: int,
    ) -> None:
        self.plan, self.query, self.key, self.value = plan, query, key, value
        self.padding, self.tables, self.seed = padding, tables, seed
        self.batch, self.heads, _, self.dim = query.shape
        self.items = max(1, min(plan.items // self.heads, self.batch)) * self.heads
        self.table_query, self.table_value = (self._repeated(table) for table in (tables.query, tables.value))
        self.bias, self.far_value = self._repeated(tables.bias), self._repeated(tables.far_value)
        self.steps = None
        if not plan.causal and (tables.has_rows or tables.value is not None):
            # 1 at the offsets from k on, where the last entry of a table stands for all.
            step = query.new_zeros(2 * plan.k + 1)
            step[-1] = 1.0
            self.steps = skewed(step, plan)

    def _repeated(self, table: Tensor | None) -> Tensor | None:
        """A table per head as a table per item."""
        return None if table is None else table.repeat(self.items // self.heads, *[1] * (table.ndim - 1))

    def parts(self) -> Iterator[Part]:
        """The parts in order."""
        # As equal as they come.
        heads = -(-self.heads // -(-self.heads // min(self.heads, self.plan.items)))
        sequences = max(1, self.plan.items // self.heads)
        for block in self.plan.blocks():
            for start in range(0, self.batch, sequences):
                for head in range(0, self.heads, heads):
                    yield Part(
                        slice(start, min(start + sequences, self.batch)),
                        slice(head, min(head + heads, self.heads)),
                        block,
                    )

    def queries(self, part: Part, states: Tensor, name: str) -> Tensor:
        """The part's queries (or the like of them) as scratch memory, ``[items, queries, dim + 1]``, the last unset."""
        chosen = states[part.pick]
        laid_out = scratch(name, states, *chosen.shape[:3], self.dim + 1)
        laid_out[..., : self.dim] = chosen
        return laid_out.flatten(0, 1)

    def scaled_queries(self, part: Part) -> Tensor:
        """The part's queries times the scale, ``[items, queries, dim + 1]``."""
        queries = self.queries(part, self.query, "queries")
        queries[..., : self.dim].mul_(self.plan.scale)
        queries[..., self.dim] = 1.0
        return queries

    def keys(self, part: Part) -> Tensor:
        """The window's keys as scratch memory, ``[items, columns, dim + 1]``."""
        keys = self._window(part, self.key, "keys")
        hidden, filled = keys[..., self.dim], part.block.filled
        hidden[...] = HIDDEN
        hidden[..., filled] = 0.0
        if self.padding is not None:
            hidden[..., filled].masked_fill_(~self.padding[part.sequences, None, part.block.window], HIDDEN)
        return keys.flatten(0, 1)

    def values(self, part: Part) -> Tensor:
        """The window's values as scratch memory, ``[items, columns, dim + 1]``, the last number being 1."""
        values = self._window(part, self.value, "values")
        values[..., self.dim] = 1.0
        return values.flatten(0, 1)

    def _window(self, part: Part, states: Tensor, name: str) -> Tensor:
        """``[sequences, heads, columns, dim + 1]``, zeros where no key is, the last number unset."""
        chosen, filled = states[part.sequences, part.heads, part.block.window], part.block.filled
        laid_out = scratch(name, states, *chosen.shape[:2], part.block.width, self.dim + 1)
        laid_out[:, :, filled, : self.dim] = chosen
        laid_out[:, :, : filled.start, : self.dim] = 0.0
        laid_out[:, :, filled.stop :, : self.dim] = 0.0
        return laid_out

    def gate(self, part: Part) -> Tensor | None:
        """The part's gate ``[items, queries, 1]``."""
        if self.tables.gate is None:
            return None
        return self.tables.gate[part.pick].flatten(0, 1).unsqueeze(-1)

    def rows(self, part: Part, queries: Tensor) -> Tensor | None:
        """What the tables add to the scores of some queries ``[items, rows, m]`` (or rows 1), not yet gated."""
        bias = None if self.bias is None else self.bias[part.table_items, None]
        if self.table_query is None:
            return bias
        table = self.table_query[part.table_items]
        rows = scratch("rows", queries, *queries.shape[:2], table.shape[1])
        torch.bmm(queries[..., : self.dim], table.transpose(1, 2), out=rows)
        return rows if bias is None else rows.add_(bias)

    def last_rows(self, part: Part, queries: Tensor) -> Tensor | None:
        """The last entry of :meth:`rows`, ``[items, rows or 1, 1]``."""
        bias = None if self.bias is None else self.bias[part.table_items, None, -1:]
        if self.table_query is None:
            return bias
        last = torch.bmm(queries[..., : self.dim], self.table_query[part.table_items, -1:].transpose(1, 2))
        return last if bias is None else last.add_(bias)

    def add(self, pairs: Tensor, rows: Tensor, tile: Tile) -> None:
        """Add rows over offsets to numbers per pair ``[items, rows, columns]``, in place."""
        plan = self.plan
        near = band(pairs, tile, plan.k, plan.causal)
        near.add_(rows[..., : near.shape[-1]])
        start = tile.diagonal + plan.k
        if self.steps is not None and start < tile.width:
            pairs[..., start:].addcmul_(skewed_part(self.steps, plan, tile, start), rows[..., -1:])

    def sums(self, pairs: Tensor, tile: Tile, name: str) -> Tensor:
        """The sums of numbers per pair over equal offsets, ``[items, rows, m]``; what :meth:`add` is the adjoint of."""
        plan = self.plan
        near = band(pairs, tile, plan.k, plan.causal)
        sums = scratch(name, pairs, *near.shape[:2], plan.k if plan.causal else 2 * plan.k)
        sums[..., : near.shape[-1]] = near
        if plan.causal:
            return sums
        # From here on a key is beyond the horizon for the first row; from there on, for all rows.
        here, there = tile.diagonal + plan.k, tile.diagonal + plan.k + pairs.shape[1] - 1
        torch.sum(pairs[..., there:], -1, out=sums[..., -1])
        if self.steps is not None and here < min(there, tile.width):
            some = pairs[..., here:there]
            beyond = skewed_part(self.steps, plan, tile, here)[..., : some.shape[-1]]
            product = torch.mul(some, beyond, out=scratch("beyond", pairs, *some.shape))
            sums[..., -1].add_(product.sum(-1))
        return sums

    def scores(self, part: Part, queries: Tensor, keys: Tensor, rows: Tensor | None, tile: Tile) -> Tensor:
        """The scores of a tile, in scratch memory."""
        scores = product("scores", queries, keys)
        if rows is not None:
            self.add(scores, rows, tile)
        if self.tables.added is not None:
            start = tile.diagonal + 1 if self.plan.hides_only else 0
            by_head = scores.unflatten(0, part.by_head)[..., start:]
            by_head.add_(skewed_part(self.added(part), self.plan, tile, start))
        return scores

    def added(self, part: Part) -> Tensor:
        """The table of the part's heads that is added to the scores, ``[heads or 1, rows, columns]``."""
        added: Tensor = self.tables.added  # type: ignore[assignment]
        return added if len(added) == 1 else added[part.heads]

    def kept(self, part: Part, tile: Tile, like: Tensor) -> Tensor | None:
        """Which weights of a tile are not dropped, times their factor; the same for the same part and tile."""
        if self.plan.dropout == 0:
            return None
        item = part.sequences.start * self.heads + part.heads.start
        number = item * self.plan.queries + part.block.queries.start + tile.rows.start
        generator = torch.Generator(device=like.device).manual_seed((self.seed + number) % 2**62)
        kept = scratch("kept", like, *like.shape).bernoulli_(1 - self.plan.dropout, generator=generator)
        return kept.div_(1 - self.plan.dropout)

    def constant(self, right: bool) -> Tensor | None:
        """What the ungated table adds to the scores of all pairs of a tail, ``[heads or 1, 1]``."""
        added = self.tables.added
        return None if added is None else added[:, 0, -1 if right else 0].unsqueeze(-1)

    def right_number(self, part: Part, queries: Tensor, gate: Tensor | None) -> Tensor | None:
        """What is added to the scores of a part in right tails; broadcasts to ``[sequences, heads, queries]``."""
        number, constant = self.last_rows(part, queries), self.constant(right=True)
        if constant is not None and len(constant) > 1:
            constant = constant[part.heads]
        if number is None:
            return constant
        number = (number if gate is None else number * gate).squeeze(-1).unflatten(0, part.by_head)
        return number if constant is None else number + constant


def empty_like(states: Tensor) -> Tensor:
    """Memory laid out as attention's inputs come from their projections: all heads of a token together."""
    return torch.empty_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def product(name: str, left: Tensor, right: Tensor) -> Tensor:
    """The dot products of all pairs, ``[items, rows, columns]``, in scratch memory."""
    pairs = scratch(name, left, *left.shape[:2], right.shape[1])
    return torch.bmm(left, right.transpose(1, 2), out=pairs)


def softmax(scores: Tensor) -> Tensor:
    """The softmax over the last dimension, in scratch memory."""
    return torch.softmax(scores, -1, out=scratch("weights", scores, *scores.shape))


def log_sum_exp(scores: Tensor, weights: Tensor) -> Tensor:
    """The log-sum-exp over the last dimension of scores whose softmax is known."""
    # The largest weight is 1 / sum(exp(scores - highest)).
    return scores.amax(-1).sub_(weights.amax(-1).log_())
