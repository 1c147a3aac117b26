"""The engine for short inputs: all pairs in tiles that fit the processor's cache, recomputed in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.compat import pytorch
from hf_relpos.engines import eager
from hf_relpos.engines.cpu import tiled
from hf_relpos.engines.cpu.tables import prepare
from hf_relpos.engines.engine import Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Queries in a tile.
ROWS = 128


# Below so many queries, holding all scores is faster: in general, for a bias alone, for a bias that does not learn.
SHORT, SHORT_BIAS, SHORT_FIXED_BIAS = 96, 192, 128

# The same with attention dropout, which no fused operator takes.
SHORT_DROPPING, SHORT_BIAS_DROPPING = 192, 512


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    query, mask = case.query, case.mask
    if torch.compiler.is_compiling():
        return "torch.compile"  # it would compile anew for every number of blocks
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    if pytorch.is_transformed():
        return "transforms of torch.func"
    if case.has_tangents:
        return "forward-mode derivatives"
    if case.device not in ("cpu", "cuda"):
        return f"tensors on {case.device!r}"
    if type(query) is not Tensor:
        return f"tensors of type {type(query).__name__}"
    if case.terms.key is not None:
        return "terms on the key"
    if mask.pattern is not None or mask.dense is not None:
        return "masks other than causality, padding and a window"
    if not isinstance(mask.query_offset, int) or not 0 <= mask.query_offset <= mask.key_length - mask.query_length:
        return "queries that do not stand among the keys"
    if query.shape[-1] != case.value.shape[-1]:
        return "values of another size than the keys"
    return None


def pays_off(case: Case) -> bool:
    """Whether there are many queries, or more scores than are held at once. Measured on the CPU only."""
    if case.device != "cpu" or torch.compiler.is_compiling():
        return False
    if case.dropout > 0:
        short = SHORT_BIAS_DROPPING if case.only_bias else SHORT_DROPPING
    elif case.only_bias:
        short = SHORT_BIAS if case.bias_learns else SHORT_FIXED_BIAS
    else:
        short = SHORT
    return case.queries >= short or case.pairs > eager.FEW_SCORES


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


ENGINE = Engine("dense", attend, refuses, pays_off)
