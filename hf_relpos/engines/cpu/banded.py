"""The engine for long inputs: the keys far from a query by PyTorch's fused operator, those around it in tiles.

Beyond the horizon of its tables every relative term is constant for a query. Queries go in blocks, and what lies left
or right of the horizon for all queries of a block is plain attention plus one number per query. See `tiled`.
"""

from __future__ import annotations

from torch import Tensor

from hf_relpos.engines.cpu import dense
from hf_relpos.engines.cpu import operators as fused
from hf_relpos.engines.engine import Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Queries in a block: fewer leave more to the fused operator, but it is slow below 192.
SPAN = 256


# From so many queries on it pays off.
LONG, LONG_CAUSAL = 1024, 513


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    refusal = dense.refuses(case)
    if refusal is not None:
        return refusal
    if case.mask.window is not None:
        return None  # nothing is left to the fused operator
    if case.dropout > 0:
        return "attention dropout"
    if case.mask.padding is not None and case.device != "cpu":
        return f"padding on {case.device!r}"
    if not fused.is_sound(case.device):
        return "this release of PyTorch"
    return None


def pays_off(case: Case) -> bool:
    """Whether most keys are hidden by a window, or beyond the horizon of long inputs."""
    if not dense.pays_off(case):
        return False
    is_long = case.queries >= (LONG_CAUSAL if case.mask.causal else LONG)
    return case.mask.window is not None or (is_long and 2 * case.horizon <= case.queries)


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

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights. ``span`` is the
    number of queries in a block; None takes the one found fastest.
    """
    if span is None:
        span = SPAN if mask.window is None else dense.ROWS
    return dense.attend(query, key, value, terms, mask, scale=scale, dropout=dropout, span=span)


ENGINE = Engine("banded", attend, refuses, pays_off)
