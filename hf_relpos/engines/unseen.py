"""Keys and values that are hidden and not finite: every engine keeps them out of what cannot see them.

Hiding gives a key the weight zero, and zero times NaN or infinity is NaN: in the output, or in a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hf_relpos.engines.eager import per_head
from hf_relpos.masks import AttentionMask, can_look_at

# About so many pairs are looked at at a time.
BLOCK_PAIRS = 2**21

Result = tuple[Tensor, Tensor | None]


def attend(
    run: Callable[[Tensor, Tensor], Result],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    *,
    guarded: bool = False,
) -> Result:
    """What an engine makes of keys and values; a query that sees one that is not finite gets NaN, and no other does.

    Where looking at numbers would wait for a device or end a graph, only what :meth:`AttentionMask.seen` tells is kept
    out: padding, and unfilled places of a cache.

    Args:
        run: the engine, from keys and values to its output and its weights or None.
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``.
        value: ``[batch, key heads, keys, value_dim]``.
        mask: who may attend to whom.
        guarded: whether the engine keeps out of outputs and gradients what is hidden, see `Engine.guards`.
    """
    if not can_look_at(query):
        if guarded:
            return run(key, value)
        seen = mask.seen(query.device)
        return run(key, value) if seen is None else run(_without(key, ~seen), _without(value, ~seen))
    if not mask.hides:
        return run(key, value)
    output, weights = run(key, value)
    # In a gradient they may show though they do not in the output.
    if all(map(_is_finite, (key, value) if output.requires_grad and not guarded else (output,))):
        return output, weights
    broken = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
    if not broken.any():
        return output, weights
    lost = _sees(mask, per_head(broken, query.shape[1]))
    output, weights = run(_without(key, broken), _without(value, broken))
    nothing = torch.zeros_like(lost, dtype=output.dtype).masked_fill_(lost, float("nan"))
    return output + nothing, None if weights is None else weights + nothing


def _without(states: Tensor, hidden: Tensor) -> Tensor:
    """Keys or values with zeros for some of them, ``[batch or 1, key heads or 1, keys]``."""
    return states.masked_fill(hidden.unsqueeze(-1), 0.0)


def _is_finite(states: Tensor) -> bool:
    """Whether all numbers are finite, by one sum: it may be wrong about those so large that it overflows."""
    return math.isfinite(states.detach().sum(dtype=torch.promote_types(states.dtype, torch.float32)).item())


def _sees(mask: AttentionMask, keys: Tensor) -> Tensor:
    """Which queries see one of some keys ``[batch, heads, keys]``; ``[batch, heads, queries, 1]``."""
    size = max(1, BLOCK_PAIRS // keys.numel())
    seen = []
    for start in range(0, mask.query_length, size):
        block = slice(start, min(start + size, mask.query_length))
        allowed: Tensor = mask.allowed(block, slice(0, mask.key_length), keys.device)  # type: ignore[assignment]
        seen.append((allowed & keys.unsqueeze(-2)).any(-1, keepdim=True))
    return torch.cat(seen, dim=-2)
