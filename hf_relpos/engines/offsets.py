"""From tables over offsets to blocks of query-key pairs and back, without an index per pair.

A row of numbers over the offsets ``-k .. k``, one row per query, becomes one number per query and key
(:func:`spread`); the adjoint sums numbers per query and key over equal offsets (:func:`collect`). Laid out over
*all* offsets of a block, each query's row is the previous one shifted by one place, so that a change of the row
length moves every number to its key: no gather, and no scatter in the backward pass. The exceptions, which index, are a
position that is only known on the device, and code that is compiled to C++.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def spread(rows: Tensor, keys: int, first: int | Tensor) -> Tensor:
    """Each query's number for the offset of each key.

    Args:
        rows: ``[..., queries, 2k + 1]``, for the offsets ``-k .. k``; constant beyond.
        keys: number of keys.
        first: position of the first query minus position of the first key; an int, or a 0-d tensor.

    Returns:
        ``[..., queries, keys]``: entry ``i, j`` is row ``i`` at offset ``j - (first + i)``.
    """
    queries, k = rows.shape[-2], rows.shape[-1] // 2
    if isinstance(first, Tensor) or _is_compiled_to_cpp(rows):
        index = _offset_index(queries, keys, k, first, rows.device)
        return rows.gather(-1, index.expand(*rows.shape[:-1], keys))
    left, low, high, right = _split(queries, keys, k, first)
    layout = torch.cat(
        [
            rows[..., :1].expand(*rows.shape[:-1], left),
            rows[..., low:high],
            rows[..., -1:].expand(*rows.shape[:-1], right),
        ],
        dim=-1,
    )
    return _shift(layout, keys)


def collect(pairs: Tensor, k: int, first: int | Tensor) -> Tensor:
    """The sum of each query's numbers over the keys at each offset: the adjoint of :func:`spread`.

    Args:
        pairs: ``[..., queries, keys]``.
        k: the horizon; offsets beyond it count as ``-k`` or ``k``.
        first: as in :func:`spread`.

    Returns:
        ``[..., queries, 2k + 1]``.
    """
    queries, keys = pairs.shape[-2:]
    if isinstance(first, Tensor) or _is_compiled_to_cpp(pairs):
        index = _offset_index(queries, keys, k, first, pairs.device)
        zeros = pairs.new_zeros(*pairs.shape[:-1], 2 * k + 1)
        return zeros.scatter_add(-1, index.expand(pairs.shape), pairs)
    left, low, high, right = _split(queries, keys, k, first)
    layout = _unshift(pairs)
    width = layout.shape[-1]
    total = F.pad(layout[..., left : width - right], (low, 2 * k + 1 - high))
    below = layout[..., :left].sum(-1, keepdim=True)
    above = layout[..., width - right :].sum(-1, keepdim=True)
    return total + F.pad(below, (0, 2 * k)) + F.pad(above, (2 * k, 0))


def _split(queries: int, keys: int, k: int, first: int) -> tuple[int, int, int, int]:
    """How the offsets of a block fall left of, within and right of the table.

    Returns:
        The number of offsets below ``-k``; start and stop of the table rows in use; the number above ``k``.
    """
    lowest, highest = -(queries - 1) - first, keys - 1 - first
    left = max(0, min(highest, -k - 1) - lowest + 1)
    right = max(0, highest - max(lowest, k + 1) + 1)
    within = queries + keys - 1 - left - right
    low = min(max(lowest, -k) + k, 2 * k + 1 - within)
    return left, low, low + within, right


def _shift(layout: Tensor, keys: int) -> Tensor:
    """From ``[..., queries, queries + keys - 1]`` over offsets, lowest first, to ``[..., queries, keys]``."""
    *batch, queries, width = layout.shape
    if queries == 1:
        return layout
    flat = layout.reshape(*batch, queries * width)[..., queries - 1 : queries * width - 1]
    return flat.unflatten(-1, (queries, width - 1))[..., :keys]


def _unshift(pairs: Tensor) -> Tensor:
    """From ``[..., queries, keys]`` to ``[..., queries, queries + keys - 1]`` over offsets, zero where no key is."""
    *batch, queries, keys = pairs.shape
    if queries == 1:
        return pairs
    width = queries + keys - 1
    flat = pairs.new_zeros(*batch, queries * width)
    flat[..., queries - 1 : queries * width - 1].unflatten(-1, (queries, width - 1))[..., :keys] = pairs
    return flat.unflatten(-1, (queries, width))


def _is_compiled_to_cpp(numbers: Tensor) -> bool:
    """Whether a compiler is about to make C++ of the code; an index is then better than views.

    For views whose lengths are symbols it takes minutes in the backward pass, and a third of that for an index.
    """
    return torch.compiler.is_compiling() and numbers.device.type == "cpu"


def _offset_index(queries: int, keys: int, k: int, first: int | Tensor, device: torch.device) -> Tensor:
    """The table row of each pair, ``[queries, keys]``."""
    at = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - first
    return at.clamp(-k, k) + k
