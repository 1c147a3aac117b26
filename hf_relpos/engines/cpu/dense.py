"""The engine for short inputs: all pairs in tiles that fit the processor's cache, recomputed in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.engines import eager
from hf_relpos.engines.cpu import tiled
from hf_relpos.engines.cpu.tables import prepare
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Queries in a tile.
ROWS = 128


def refuses(query: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    if torch.compiler.is_compiling():
        return "torch.compile"  # it would compile anew for every number of blocks
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    if torch._C._are_functorch_transforms_active():
        return "transforms of torch.func"
    if query.device.type not in ("cpu", "cuda"):
        return f"tensors on {query.device.type!r}"
    if type(query) is not Tensor:
        return f"tensors of type {type(query).__name__}"
    if terms.key is not None:
        return "terms on the key"
    if mask.pattern is not None or mask.dense is not None:
        return "masks other than causality, padding and a window"
    if not isinstance(mask.query_offset, int) or not 0 <= mask.query_offset <= mask.key_length - mask.query_length:
        return "queries that do not stand among the keys"
    if query.shape[-1] != value.shape[-1]:
        return "values of another size than the keys"
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
    span: int | None = None,
) -> tuple[Tensor, None]:
    """Attention with relative terms, for all that :func:`refuses` does not refuse.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights. Memory grows
    linearly, time with queries x keys. ``span``: see :class:`hf_relpos.engines.cpu.tiles.Plan`; None is one block for
    all.
    """
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with eager.full_precision(query.device):
        query, key, value = (eager.per_head(states.to(dtype), query.shape[1]) for states in (query, key, value))
        plan, tables = prepare(
            query, terms.to(dtype), mask, span=span or query.shape[2], rows=ROWS, scale=scale, dropout=dropout
        )
        padding = mask.padding if mask.hides_keys else None
        output = tiled.attend(query, key, value, padding, plan, tables)
    return output.to(out_dtype), None
