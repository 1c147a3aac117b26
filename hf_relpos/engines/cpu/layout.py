"""The inputs of the tiled engines as they are worked on: sequences and heads as one dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines.cpu.tables import Tables
from hf_relpos.engines.cpu.tiles import HIDDEN, Block, Plan, Tile, band, scratch, skewed, skewed_part


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
    def window(self) -> tuple[slice, slice, slice]:
        """Where the keys of the part's window are in ``[batch, heads, keys, ...]``."""
        return self.sequences, self.heads, self.block.window

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

    In the layout, sequences and heads are one dimension, ``items``. Where a part is of one sequence, that is a view.
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
        self.tables, self.seed = tables, seed
        self.batch, self.heads, _, self.dim = query.shape
        self.items = max(1, min(plan.items // self.heads, self.batch)) * self.heads
        self.table_query, self.table_value = (self._repeated(table) for table in (tables.query, tables.value))
        self.bias = self._repeated(tables.bias)
        # Added to the scores of each key, ``[batch, 1, 1, keys]``.
        self.hidden: Tensor | None = None
        if padding is not None:
            self.hidden = query.new_zeros(padding.shape).masked_fill_(~padding, HIDDEN)[:, None, None]
        self.steps: Tensor | None = None
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

    def by_query(self, part: Part, states: Tensor, name: str) -> Tensor:
        """Of the part's queries, what ``states`` has for each, ``[items, queries, ...]``."""
        chosen = states[part.pick]
        if len(chosen) == 1:
            return chosen[0]
        return scratch(name, states, *chosen.shape).copy_(chosen).flatten(0, 1)

    def keys(self, part: Part) -> Tensor:
        """The window's keys, ``[items, columns, dim]``."""
        return self._by_column(part, self.key, "keys")

    def values(self, part: Part) -> Tensor:
        """The window's values, ``[items, columns, dim]``."""
        return self._by_column(part, self.value, "values")

    def _by_column(self, part: Part, states: Tensor, name: str) -> Tensor:
        """``[items, columns, dim]``, zeros where no key is."""
        chosen, filled = states[part.window], part.block.filled
        if len(chosen) == 1 and chosen.shape[2] == part.block.width:
            return chosen[0]
        laid_out = scratch(name, states, *chosen.shape[:2], part.block.width, self.dim)
        laid_out[:, :, filled] = chosen
        laid_out[:, :, : filled.start] = 0.0
        laid_out[:, :, filled.stop :] = 0.0
        return laid_out.flatten(0, 1)

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
        rows = product("rows", queries, self.table_query[part.table_items], self.plan.scale)
        return rows if bias is None else rows.add_(bias)

    def last_rows(self) -> Tensor | None:
        """The last entry of the rows of all queries; broadcasts to ``[batch, heads, queries]``."""
        query, bias = self.tables.query, self.tables.bias
        last = None if bias is None else bias[:, -1:]
        if query is None:
            return last
        of_query = (self.query @ query[:, -1].unsqueeze(-1)).squeeze(-1).mul_(self.plan.scale)
        return of_query if last is None else of_query.add_(last)

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
            masked = torch.mul(some, beyond, out=scratch("beyond", pairs, *some.shape))
            sums[..., -1].add_(masked.sum(-1))
        return sums

    def scores(self, part: Part, queries: Tensor, keys: Tensor, rows: Tensor | None, tile: Tile) -> Tensor:
        """The scores of a tile, in scratch memory."""
        scores = product("scores", queries, keys, self.plan.scale)
        if rows is not None:
            self.add(scores, rows, tile)
        if self.tables.added is not None:
            start = tile.diagonal + 1 if self.plan.hides_only else 0
            by_head = scores.unflatten(0, part.by_head)[..., start:]
            by_head.add_(skewed_part(self.added(part), self.plan, tile, start))
        self._hide(part, scores)
        return scores

    def _hide(self, part: Part, scores: Tensor) -> None:
        """Hide the columns of a tile that have padding, or no key."""
        filled, columns = part.block.filled, scores.shape[-1]
        if self.hidden is not None:
            hidden = self.hidden[part.sequences, ..., part.block.window][..., : columns - filled.start]
            scores.unflatten(0, part.by_head)[..., filled].add_(hidden)
        if filled.start > 0:
            scores[..., : filled.start] = HIDDEN
        if filled.stop < columns:
            scores[..., filled.stop :] = HIDDEN

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

    def right_number(self) -> Tensor | None:
        """What is added to a query's scores in right tails; broadcasts to ``[batch, heads, queries]``."""
        number, constant, gate = self.last_rows(), self.constant(right=True), self.tables.gate
        if number is None:
            return constant
        if gate is not None:
            number = number * gate
        return number if constant is None else number + constant


def times(states: Tensor, *factors: Tensor | None) -> Tensor:
    """States ``[.., queries, dim]`` times factors ``[.., queries]``, those that there are."""
    for factor in factors:
        states = states if factor is None else states * factor.unsqueeze(-1)
    return states


def add_value(output: Tensor, value: Tensor | None, gate: Tensor | None, factor: float) -> None:
    """Add a value vector per head to an output, times its gate and a factor, in place; nothing if it is None."""
    if value is not None and gate is None:
        output.add_(value, alpha=factor)
    elif value is not None and gate is not None:
        output.addcmul_(value, gate.unsqueeze(-1), value=factor)


def empty_like(states: Tensor) -> Tensor:
    """Memory laid out as attention's inputs come from their projections: all heads of a token together."""
    return torch.empty_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def scratch_like(name: str, states: Tensor) -> Tensor:
    """Scratch memory for states, laid out as by :func:`empty_like`."""
    batch, heads, count, dim = states.shape
    return scratch(name, states, batch, count, heads, dim).transpose(1, 2)


def dots(left: Tensor, right: Tensor) -> Tensor:
    """The dot products of two vectors of each query, ``[batch, heads, queries]``."""
    return torch.mul(left, right, out=scratch_like("products", left)).sum(-1)


def product(name: str, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """The dot products of all pairs times a factor, ``[items, rows, columns]``, in scratch memory."""
    return matmul(name, left, right.transpose(1, 2), factor)


def matmul(name: str, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """The matrix product of each item times a factor, in scratch memory."""
    out = scratch(name, left, len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


def softmax(scores: Tensor) -> Tensor:
    """The softmax over the last dimension, in scratch memory."""
    return torch.softmax(scores, -1, out=scratch("weights", scores, *scores.shape))


def log_sum_exp(scores: Tensor, weights: Tensor) -> Tensor:
    """The log-sum-exp over the last dimension of scores whose softmax is known."""
    # The largest weight is 1 / sum(exp(scores - highest)).
    return scores.amax(-1).sub_(weights.amax(-1).log_())
