"""The engine for long inputs: the keys far from a query by PyTorch's fused operator, those around it in tiles.

Beyond the horizon of its tables every relative term is constant for a query. Queries go in blocks, and what lies left
or right of the horizon for all queries of a block is plain attention plus one number per query. See `tiled`.
"""

from __future__ import annotations

from torch import Tensor

from hf_relpos.engines.cpu import dense
from hf_relpos.engines.cpu import operators as fused
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Queries in a block: fewer leave more to the fused operator, but it is slow below 192.
SPAN = 256


def refuses(query: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    refusal = dense.refuses(query, value, terms, mask, dropout)
    if refusal is not None:
        return refusal
    if mask.window is not None:
        return None  # nothing is left to the fused operator
    if dropout > 0:
        return "attention dropout"
    if mask.padding is not None and query.device.type != "cpu":
        return f"padding on {query.device.type!r}"
    if not fused.is_sound(query.device.type):
        return "this release of PyTorch"
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

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights. ``span`` is the
    number of queries in a block; None takes the one found fastest.
    """
    if span is None:
        span = SPAN if mask.window is None else dense.ROWS
    return dense.attend(query, key, value, terms, mask, scale=scale, dropout=dropout, span=span)
