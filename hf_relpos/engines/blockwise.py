"""Attention in blocks of queries, recomputed in the backward pass: memory grows linearly with the length.

Takes every mask, every term and dropout, in plain PyTorch, so on any device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_relpos.compat import pytorch
from hf_relpos.engines.eager import attend_block
from hf_relpos.engines.engine import Engine
from hf_relpos.engines.recompute import Unchanged, remembered
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

    Raises:
        RuntimeError: in the backward pass, if one of the tensors was changed in place since; names it.
    """
    # Cast once: a cast within each block would round, and sum up in low precision, each block's gradients.
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    query, key, value, terms = query.to(wide), key.to(wide), value.to(wide), terms.to(wide)
    tensors = {"query": query, "key": key, "value": value, **terms.named, "attention mask": mask.dense}
    recompute = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors.values())
    # Checkpoints cannot be made under transforms of torch.func; their memory grows with the number of pairs.
    recompute = recompute and not pytorch.is_transformed()
    # A compiler sees for itself that what it saves does not change.
    inputs = Unchanged(tensors) if recompute and not torch.compiler.is_compiling() else None
    outputs = []
    for queries, keys in _blocks(query, mask):
        of_block = remembered(mask) if inputs is not None else mask

        def attend_one(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            queries: slice = queries,
            keys: slice = keys,
            of_block: AttentionMask = of_block,
        ) -> Tensor:
            if inputs is not None:
                inputs.check()
            return attend_block(query, key, value, terms, of_block, queries, keys, scale=scale, dropout=dropout)[0]

        states = (query[:, :, queries], key[:, :, keys], value[:, :, keys])
        if recompute:
            outputs.append(checkpoint(attend_one, *states, use_reentrant=False, preserve_rng_state=dropout > 0))
        else:
            outputs.append(attend_one(*states))
    return torch.cat(outputs, dim=2).to(dtype), None


def _blocks(query: Tensor, mask: AttentionMask) -> Iterator[tuple[slice, slice]]:
    """The queries of each block, and the keys that they can see."""
    batch, heads, queries, _ = query.shape
    if torch.compiler.is_compiling():
        # The number of blocks, and their keys, would be compiled in, anew for other lengths.
        yield slice(0, queries), slice(0, mask.key_length)
        return
    size = max(LEAST_QUERIES, BLOCK_SCORES // max(1, batch * heads * mask.key_length))
    for start in range(0, queries, size):
        block = slice(start, min(start + size, queries))
        yield block, mask.key_range(block)


ENGINE = Engine("blockwise", attend)
