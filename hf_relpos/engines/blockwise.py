"""Attention in blocks of queries, recomputed in the backward pass: memory grows linearly with the length.

Takes every mask, every term and dropout, in plain PyTorch, so on any device.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_relpos.engines.eager import attend_block
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# A block has about this many scores, but at least so many queries that the matrix products stay worth their while.
BLOCK_SCORES = 2**21
LEAST_QUERIES = 64


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
    """Attention with relative terms, a block of queries at a time.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, except that the weights, which are
    never all there at once, come back as None.
    """
    batch, heads, queries, _ = query.shape
    size = max(LEAST_QUERIES, BLOCK_SCORES // max(1, batch * heads * mask.key_length))
    recompute = torch.is_grad_enabled() and _requires_grad(query, key, value, terms, mask)
    # Checkpoints cannot be made under transforms of torch.func; their memory grows with the number of pairs.
    recompute = recompute and not torch._C._are_functorch_transforms_active()
    # Cast once: a cast within each block would round, and sum up in low precision, each block's gradients.
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    query, key, value, terms = query.to(wide), key.to(wide), value.to(wide), terms.to(wide)
    outputs = []
    for start in range(0, queries, size):
        block = slice(start, min(start + size, queries))
        keys = mask.key_range(block)
        attend_one = partial(_output, terms, mask, block, keys, scale, dropout)
        states = (query[:, :, block], key[:, :, keys], value[:, :, keys])
        if recompute:
            outputs.append(checkpoint(attend_one, *states, use_reentrant=False, preserve_rng_state=dropout > 0))
        else:
            outputs.append(attend_one(*states))
    return torch.cat(outputs, dim=2).to(dtype), None


def _output(
    terms: RelativeTerms,
    mask: AttentionMask,
    queries: slice,
    keys: slice,
    scale: float,
    dropout: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    return attend_block(query, key, value, terms, mask, queries, keys, scale=scale, dropout=dropout)[0]


def _requires_grad(query: Tensor, key: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask) -> bool:
    tensors = (
        query, key, value, terms.bias, terms.query, terms.key, terms.value, terms.gate, terms.native_bias, mask.dense
    )  # fmt: skip
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
