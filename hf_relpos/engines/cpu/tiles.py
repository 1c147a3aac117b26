"""How the queries and keys of a call fall into blocks, tails and tiles; and the memory that tiles are worked on in.

A *block* is a run of queries with a *window* of keys around it, beyond which every relative term is constant for a
query. The pairs outside of the windows are covered by rectangles, the *tails*, as large as they come: the queries are
halved again and again, and what leaves the window of a half is a tail of it. A block is cut into *tiles* of a few rows,
small enough to stay in the processor's cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_relpos.engines.offsets import spread

# Stands for minus infinity: far below every score, and still a number that can be added to.
HIDDEN = -1e30

# Matrix products are a fifth faster if their rows have a multiple of so many numbers.
ALIGNED = 16

# Scratch tensors up to this many numbers are kept for the next call: a dozen or so for each thread and dtype.
KEPT_NUMBERS = 2**22


class Plan(NamedTuple):
    """The geometry of one call.

    Attributes:
        queries: number of queries.
        keys: number of keys.
        offset: position of the first query, counted in keys.
        causal: whether later keys are hidden.
        k: horizon of the tables on queries and values, at least 1.
        reach: from this offset on (either way) nothing changes any more, or, if ``local``, nothing is seen.
        local: whether there are no tails.
        span: queries in a block; with ``queries`` or more, there is one block, and every key is in its window.
        rows: queries in a tile.
        items: sequences times heads worked on at once.
        hides_only: whether the skewed table does no more than hide later keys.
        scale: factor of the dot products.
        dropout: probability with which a weight is dropped; with tails, 0.
    """

    queries: int
    keys: int
    offset: int
    causal: bool
    k: int
    reach: int
    local: bool
    span: int
    rows: int
    items: int
    hides_only: bool
    scale: float
    dropout: float = 0.0

    def window(self, start: int, stop: int) -> slice:
        """The keys for which the relative terms of some queries are not all constant; of all queries, every key."""
        first, last = start + self.offset, stop - 1 + self.offset
        low, high = max(0, first - self.reach + 1), min(self.keys, last + self.reach)
        if stop - start == self.queries and not self.local:
            low, high = 0, self.keys
        return slice(low, last + 1 if self.causal else max(low, high))

    def blocks(self) -> Iterator[Block]:
        """The blocks in order."""
        for start in range(0, self.queries, self.span):
            stop = min(start + self.span, self.queries)
            first, last = start + self.offset, stop - 1 + self.offset
            window = self.window(start, stop)
            base, end = min(window.start, first - self.k + 1), max(window.stop, last + (1 if self.causal else self.k))
            yield Block(slice(start, stop), first, window, base, _aligned(end - base))

    def tails(self) -> Iterator[Tail]:
        """The tails, in an order that depends on nothing else."""
        return iter(()) if self.local else self._tails(0, self.queries)

    def _tails(self, start: int, stop: int) -> Iterator[Tail]:
        blocks = -(-(stop - start) // self.span)
        if blocks <= 1:
            return
        whole, middle = self.window(start, stop), start + -(-blocks // 2) * self.span
        for half in ((start, middle), (middle, stop)):
            window = self.window(*half)
            left, right = slice(whole.start, window.start), slice(window.stop, whole.stop)
            if left.start < left.stop:
                yield Tail(slice(*half), left, right=False)
            if right.start < right.stop and not self.causal:
                yield Tail(slice(*half), right, right=True)
            yield from self._tails(*half)

    def tiles(self, block: Block) -> Iterator[Tile]:
        """The tiles of a block in order."""
        count = block.queries.stop - block.queries.start
        for start in range(0, count, self.rows):
            stop = min(start + self.rows, count)
            position = block.first + start
            width = min(block.width, _aligned(position + stop - start - block.base)) if self.causal else block.width
            yield Tile(slice(start, stop), position - block.base, width)


def _aligned(columns: int) -> int:
    """The next number of columns with which every row of a tile starts at a multiple of a cache line."""
    return -(-columns // ALIGNED) * ALIGNED


class Block(NamedTuple):
    """A run of queries.

    Attributes:
        queries: which ones.
        first: position of the first one, counted in keys.
        window: the keys around them.
        base: the key, or place before the first key, at the window's column 0.
        width: number of columns; those that have no key are hidden.
    """

    queries: slice
    first: int
    window: slice
    base: int
    width: int

    @property
    def filled(self) -> slice:
        """The columns that have a key."""
        return slice(self.window.start - self.base, self.window.stop - self.base)


class Tail(NamedTuple):
    """Some queries, and keys that are beyond the horizon for all of them.

    Attributes:
        queries: which ones.
        keys: which ones.
        right: whether the keys are to the right of the queries.
    """

    queries: slice
    keys: slice
    right: bool


class Tile(NamedTuple):
    """Some rows of a block.

    Attributes:
        rows: which ones, counted in the block.
        diagonal: the column of the first row's own position; each further row's is one more.
        width: number of the window's columns in use.
    """

    rows: slice
    diagonal: int
    width: int


def band(pairs: Tensor, tile: Tile, k: int, causal: bool) -> Tensor:
    """A view on the offsets ``-k + 1 .. k - 1`` of each row (``.. 0`` if causal).

    Args:
        pairs: ``[items, rows, columns]``, contiguous.
        tile: where the diagonal is.
        k: the horizon.
        causal: whether later keys are hidden.

    Returns:
        ``[items, rows, 2k - 1 or k]``.
    """
    items, rows, columns = pairs.shape
    size = (items, rows, k if causal else 2 * k - 1)
    return pairs.as_strided(size, (rows * columns, columns + 1, 1), pairs.storage_offset() + tile.diagonal - k + 1)


@lru_cache
def columns(plan: Plan) -> tuple[int, int]:
    """How far the columns of the tiles reach, and one more: before the position of the first query, and from it on."""
    tiles = [tile for block in plan.blocks() for tile in plan.tiles(block)]
    return max(tile.diagonal for tile in tiles) + 1, max(tile.width - tile.diagonal for tile in tiles) + 1


def skewed(table: Tensor, plan: Plan) -> Tensor:
    """A table over offsets, laid out so that every tile's part of it is a slice; see :func:`skewed_part`.

    Args:
        table: ``[..., 2k + 1]`` over the offsets ``-k .. k``; constant beyond.
        plan: the geometry.

    Returns:
        ``[..., rows, columns]``: entry ``i, p`` is the table at offset ``p - before - i``.
    """
    before, after = columns(plan)
    rows = table.unsqueeze(-2).expand(*table.shape[:-1], min(plan.rows, plan.queries), table.shape[-1])
    return spread(rows, before + after, before).contiguous()


def skewed_part(skewed: Tensor, plan: Plan, tile: Tile, start: int = 0) -> Tensor:
    """The view on a skewed table that fits a tile from a column on, ``[..., rows, width - start]``."""
    before, _ = columns(plan)
    rows = tile.rows.stop - tile.rows.start
    return skewed[..., :rows, before - tile.diagonal + start : before - tile.diagonal + tile.width]


class Scratch:
    """Memory by name, used again by the next call of the same thread.

    Fresh memory costs more than the arithmetic that fills it: the system hands it out page by page.
    """

    _kept = threading.local()

    def __call__(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """A contiguous tensor with any content, in the dtype of ``like``, valid until its name is asked for again."""
        numbers = prod(shape)
        if numbers > KEPT_NUMBERS or like.device.type != "cpu":
            return like.new_empty(shape)
        kept: dict[Any, Tensor] = self._kept.__dict__
        memory = kept.get((name, like.dtype))
        if memory is None or memory.numel() < numbers:
            with torch.inference_mode(False):
                memory = kept[name, like.dtype] = torch.empty(numbers, dtype=like.dtype, device="cpu")
        return memory[:numbers].view(shape)


scratch = Scratch()
