"""Attention without relative terms: PyTorch's own fused operator."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from hf_relpos.engines.engine import Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    if not case.is_plain:
        return "relative terms"
    if case.has_tangents:
        return "forward-mode derivatives"
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
) -> tuple[Tensor, None]:
    """Plain attention, see :func:`hf_relpos.engines.eager.attend` for the arguments. Returns no weights."""
    causal = mask.is_plain_causal and query.shape[2] > 1
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if causal else _tensor(mask, query),
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=bool(key.shape[1] != query.shape[1]),
    )
    return output, None


def _tensor(mask: AttentionMask, query: Tensor) -> Tensor | None:
    """The whole mask as the operator takes it: bool, or float where the user's mask adds to the scores."""
    queries, keys = slice(0, mask.query_length), slice(0, mask.key_length)
    allowed, added = mask.allowed(queries, keys, query.device), mask.added(queries, keys)
    if added is None:
        return allowed
    added = added.to(query.dtype)
    return added if allowed is None else added.masked_fill(~allowed, float("-inf"))


ENGINE = Engine("plain", attend, refuses, is_choice=False)
