"""Who may attend to whom, as a small record: the engines read off the part they need, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_

import torch
from torch import Tensor

from hf_relpos.compat import pytorch

Pattern = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """Where the queries stand among the keys, and which pairs may attend. All conditions given must hold.

    Query ``i`` stands at position ``query_offset + i``, counted in keys: key ``j`` stands at position ``j``.

    A record answers in the backward pass as it did in the forward pass: it has its own copies of ``padding``, which
    callers fill again for the next batch, and of a ``query_offset`` on the device, which a cache advances.

    Attributes:
        query_length: number of queries.
        key_length: number of keys.
        query_offset: position of the first query; a 0-d integer tensor where it is only known on the device.
        causal: keys after the query are hidden.
        window: keys farther away than this are hidden.
        padding: bool ``[batch, key length]``, True where there is a token.
        pattern: ``(query positions [queries, 1], key positions [keys] or [queries, keys]) -> bool [batch or 1, heads or
            1, queries, keys]``: any other rule, evaluated for the pairs at hand.
        dense: bool (True: may attend) or float (added to the scores), ``[batch or 1, heads or 1, query length or 1,
            key length]``; for masks that users make themselves.
    """

    query_length: int
    key_length: int
    query_offset: int | Tensor = 0
    causal: bool = False
    window: int | None = None
    padding: Tensor | None = None
    pattern: Pattern | None = None
    dense: Tensor | None = None

    def __post_init__(self) -> None:
        if self.padding is not None:
            object.__setattr__(self, "padding", self.padding.clone())
        if isinstance(self.query_offset, Tensor):
            object.__setattr__(self, "query_offset", self.query_offset.clone())

    # Transformers hands masks around as 4-D tensors; these four are what it asks of them.

    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor this record stands for."""
        batch = 1 if self.padding is None else self.padding.shape[0]
        return (batch, 1, self.query_length, self.key_length)

    def contiguous(self) -> AttentionMask:
        """This record."""
        return self

    def to(self, *args: object, **kwargs: object) -> AttentionMask:
        """This record with its tensors moved; dtypes are kept, since they carry meaning here."""
        device = kwargs.get("device", args[0] if args else None)
        if not isinstance(device, (str, int, torch.device)):
            return self

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        offset = self.query_offset
        return replace(
            self,
            padding=moved(self.padding),
            dense=moved(self.dense),
            query_offset=offset.to(device) if isinstance(offset, Tensor) else offset,
        )

    def with_added(self, scores: Tensor) -> AttentionMask:
        """This mask, and numbers ``[batch or 1, heads or 1, queries, keys]`` to be added to the scores."""
        if self.dense is None:
            return replace(self, dense=scores)
        if self.dense.dtype == torch.bool:
            return replace(self, dense=torch.where(self.dense, scores, torch.finfo(scores.dtype).min))
        return replace(self, dense=self.dense + scores)

    @cached_property
    def hides_keys(self) -> bool:
        """Whether there is padding that hides a key; looked up once, for all layers. True where it cannot be seen."""
        return self.padding is not None and not (can_look_at(self.padding) and bool(self.padding.all()))

    @property
    def hides(self) -> bool:
        """Whether a key may be hidden from a query."""
        last = self.key_length - 1
        sees_all = not self.causal or (isinstance(self.query_offset, int) and self.query_offset >= last)
        has_rules = self.window is not None or self.pattern is not None or self.dense is not None
        return has_rules or not sees_all or self.hides_keys

    @property
    def is_plain_causal(self) -> bool:
        """Whether this is causality among equally many queries and keys, and nothing else."""
        return (
            self.causal
            and isinstance(self.query_offset, int)
            and self.query_offset == 0
            and self.query_length == self.key_length
            and all(rule is None for rule in (self.window, self.padding, self.pattern, self.dense))
        )

    @property
    def reach(self) -> int:
        """No query is farther than this from a key that it may see, as far as position, causality and window tell.

        A position that is only known on the device is taken to be among the keys.
        """
        if isinstance(self.query_offset, Tensor):
            return self.key_length - 1
        back = self.query_offset + self.query_length - 1
        ahead = 0 if self.causal else self.key_length - 1 - self.query_offset
        farthest = max(back, ahead, 0)
        return farthest if self.window is None else min(farthest, self.window)

    def check(self, query: torch.Size, key: torch.Size) -> None:
        """Refuse a mask that is not for these queries ``[batch, heads, queries, dim]`` and keys.

        Raises:
            ValueError: names the shape given and the shapes that fit.
            TypeError: for a mask that is neither bool nor floating point.
        """
        batch, heads, queries, keys = query[0], query[1], query[2], key[2]
        if self.padding is not None and self.padding.dtype != torch.bool:
            raise TypeError(f"The padding mask is {self.padding.dtype}, but must be bool, True where there is a token.")
        if self.dense is not None and not (self.dense.dtype == torch.bool or self.dense.is_floating_point()):
            raise TypeError(
                f"The 4-D attention mask is {self.dense.dtype}, but must be bool (True: may attend) or floating point "
                "(added to the scores)."
            )
        if (self.query_length, self.key_length) != (queries, keys):
            raise ValueError(
                f"The attention mask is for {self.query_length} queries and {self.key_length} keys, but attention has "
                f"{queries} queries and {keys} keys: a 2-D mask needs one column per key, cached keys included."
            )
        if self.padding is not None and self.padding.shape != (batch, keys):
            raise ValueError(
                f"The padding mask has shape {list(self.padding.shape)}, but must be [batch, keys] = {[batch, keys]}."
            )
        if self.dense is not None:
            given = tuple(self.dense.shape)
            fits = len(given) == 4 and given[0] in (1, batch) and given[1] in (1, heads) and given[2] in (1, queries)
            if not fits or given[3] != keys:
                raise ValueError(
                    f"The 4-D attention mask has shape {list(given)}, but must be "
                    f"[1 or {batch}, 1 or {heads}, 1 or {queries}, {keys}] = [batch, heads, queries, keys]."
                )

    def allowed(self, queries: slice, keys: slice, device: torch.device) -> Tensor | None:
        """Which pairs of a block may attend.

        Args:
            queries: start and stop of the block's queries.
            keys: start and stop of the block's keys.
            device: where the answer is needed.

        Returns:
            bool, broadcastable to ``[batch, heads, queries, keys]``; None if all may.
        """
        query_at = torch.arange(queries.start, queries.stop, device=device)[:, None] + self.query_offset
        key_at = torch.arange(keys.start, keys.stop, device=device)
        conditions = self._rules(query_at, key_at)
        if self.padding is not None:
            conditions.append(self.padding[:, None, None, keys])
        if self.dense is not None:
            conditions.append(_may_attend(self._dense_block(queries, keys)))
        return _every(conditions)

    def allowed_near(self, first: int, count: int, device: torch.device) -> Tensor | None:
        """Which keys near each query it may attend to.

        Args:
            first: offset of the first key from each query.
            count: number of keys for each query, next to each other. Where there is no such key the answer is that
                for the nearest one.
            device: where the answer is needed.

        Returns:
            bool, broadcastable to ``[batch, heads, queries, count]``; None if all may.
        """
        query = torch.arange(self.query_length, device=device)[:, None]
        query_at = query + self.query_offset
        key_at = (query_at + torch.arange(first, first + count, device=device)).clamp(0, self.key_length - 1)
        conditions = self._rules(query_at, key_at)
        if self.padding is not None:
            conditions.append(self.padding[:, None, key_at])
        if self.dense is not None:
            row = query if self.dense.shape[-2] > 1 else torch.zeros_like(query)
            conditions.append(_may_attend(self.dense[..., row, key_at]))
        return _every(conditions)

    def _rules(self, query_at: Tensor, key_at: Tensor) -> list[Tensor]:
        """What follows from positions alone, a condition each."""
        conditions = []
        if self.causal:
            conditions.append((key_at <= query_at)[None, None])
        if self.window is not None:
            conditions.append(((key_at - query_at).abs() <= self.window)[None, None])
        if self.pattern is not None:
            conditions.append(self.pattern(query_at, key_at))
        return conditions

    def added(self, queries: slice, keys: slice) -> Tensor | None:
        """What a float mask adds to a block's scores, ``[batch or 1, heads or 1, queries or 1, keys]``, or None."""
        if self.dense is None or self.dense.dtype == torch.bool:
            return None
        block = self._dense_block(queries, keys)
        return block.masked_fill(_is_hidden(block), 0.0)

    def _dense_block(self, queries: slice, keys: slice) -> Tensor:
        """The dense mask of a block. One row is for all queries, and stays one."""
        dense: Tensor = self.dense  # type: ignore[assignment]
        return dense[..., keys] if dense.shape[-2] == 1 else dense[..., queries, keys]

    def seen(self, device: torch.device) -> Tensor | None:
        """Which keys some query may see, as far as that can be told without a look at every pair and head.

        Returns:
            bool ``[batch or 1, 1, keys]``; None if all.
        """
        conditions = []
        if self.causal and isinstance(self.query_offset, Tensor):
            key_at = torch.arange(self.key_length, device=device)
            conditions.append((key_at < self.query_offset + self.query_length)[None, None])
        if self.padding is not None:
            conditions.append(self.padding[:, None])
        if self.dense is not None and self.dense.shape[1:3] == (1, 1):
            conditions.append(_may_attend(self.dense[..., 0, :]))
        return _every(conditions)

    def key_range(self, queries: slice) -> slice:
        """The keys that a block of queries can possibly see, by causality and window."""
        start, stop = 0, self.key_length
        if isinstance(self.query_offset, int):
            if self.causal:
                stop = min(stop, self.query_offset + queries.stop)
            if self.window is not None:
                start = max(start, self.query_offset + queries.start - self.window)
                stop = min(stop, self.query_offset + queries.stop + self.window)
        # An empty range would leave a block without keys; one key, hidden by `allowed`, keeps every shape regular.
        start = min(max(start, 0), self.key_length - 1)
        return slice(start, max(stop, start + 1))


def _every(conditions: list[Tensor]) -> Tensor | None:
    """Where all conditions hold; None where there are none."""
    return reduce(and_, conditions) if conditions else None


def _may_attend(dense: Tensor) -> Tensor:
    """Where a mask of users' own, bool or float, does not hide the key."""
    return dense if dense.dtype == torch.bool else ~_is_hidden(dense)


def _is_hidden(additive: Tensor) -> Tensor:
    """Where a float mask hides a key: at minus infinity, or at the lowest number of its or a narrower dtype."""
    lowest = torch.float16 if additive.dtype == torch.float16 else torch.bfloat16
    return additive <= torch.finfo(lowest).min


def can_look_at(tensor: Tensor) -> bool:
    """Whether Python may decide by a tensor's content: nothing is recorded, and there is no device to wait for."""
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing() or pytorch.is_transformed()
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not recorded
