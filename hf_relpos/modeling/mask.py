"""The mask function that Transformers calls for a patched model: a record instead of a length-by-length tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from hf_relpos.compat import transformers as compat
from hf_relpos.masks import AttentionMask, Pattern, can_look_at
from hf_relpos.modeling.tracing import as_tensor, is_traced


def relpos_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | AttentionMask | None = None,
    use_vmap: bool = False,
    device: torch.device | None = None,
    **kwargs: Any,
) -> AttentionMask:
    """The mask of a forward pass, in the form Transformers' mask interface asks for: a record, no L x L tensor.

    Args:
        batch_size: number of sequences.
        q_length: number of queries.
        kv_length: number of keys.
        q_offset: position of the first query; a tensor that the cache will change in place, for a static cache.
        kv_offset: position of the first key.
        mask_function: ``(batch, head, query position, key position) -> bool``.
        attention_mask: 2-D padding mask, True where there is a token; or the record, made before.
        use_vmap: whether ``mask_function`` can only be evaluated for one pair at a time.
        device: of the queries.
        **kwargs: what other mask functions may use.

    Raises:
        ValueError: if the padding mask has too few or too many columns.
    """
    if isinstance(attention_mask, AttentionMask):
        return attention_mask
    _check_columns(attention_mask, q_length, q_offset, kv_length, kv_offset)
    if is_traced():
        q_offset = as_tensor(q_offset, device)
    mask = AttentionMask(
        query_length=q_length,
        key_length=kv_length,
        # A new tensor where it is one: a static cache advances its own, in place, before attention runs.
        query_offset=q_offset - kv_offset,
        padding=_padding(attention_mask, batch_size, q_length, kv_length, kv_offset),
    )
    if mask_function is bidirectional_mask_function:
        return mask
    if mask_function is causal_mask_function:
        return replace(mask, causal=True)
    if use_vmap:
        dense = compat.dense_pattern(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            use_vmap=True,
            device=device,
            **kwargs,
        )
        return replace(mask, dense=dense)
    return replace(mask, pattern=_pattern(mask_function, batch_size, kv_offset))


def _check_columns(
    attention_mask: Tensor | None, q_length: int, q_offset: int | Tensor, kv_length: int, kv_offset: int
) -> None:
    """Refuse a 2-D mask that is not as long as the tokens seen so far, or as the whole cache."""
    if attention_mask is None:
        return
    if attention_mask.ndim != 2:
        raise ValueError(
            f"The attention mask has shape {list(attention_mask.shape)}, but must be [batch, tokens], cached tokens "
            "included, or [batch or 1, heads or 1, queries, keys]."
        )
    columns, cache, seen = attention_mask.shape[-1], kv_offset + kv_length, q_offset + q_length
    # Where the position is only known on the device, any part of a cache may have been seen.
    fits = columns in (cache, seen) if isinstance(seen, int) else columns <= cache
    if not fits:
        raise ValueError(
            f"The attention mask has {columns} columns, but must have one per token, cached ones included: {cache}."
        )


def _padding(
    attention_mask: Tensor | None, batch_size: int, q_length: int, kv_length: int, kv_offset: int
) -> Tensor | None:
    """The part of a 2-D padding mask that covers the keys; columns it does not have (unfilled cache) are hidden.

    None where nothing is hidden and that can be seen without waiting for a device: one look here saves one per layer.
    """
    if attention_mask is None:
        return None
    missing = kv_offset + kv_length - attention_mask.shape[-1]
    if missing > 0:
        attention_mask = F.pad(attention_mask, (0, missing))
    padding = attention_mask[:, kv_offset : kv_offset + kv_length]
    # One with a wrong number of rows is kept, to be refused.
    hides_nothing = can_look_at(padding) and len(padding) == batch_size and bool(padding.all())
    # With a cache it stays: that of a compiled step must not come and go.
    return None if hides_nothing and q_length == kv_length else padding


def _pattern(mask_function: Any, batch_size: int, kv_offset: int) -> Pattern:
    """A rule of Transformers (packed sequences, sliding windows, ...) to be evaluated block by block."""

    def pattern(query_at: Tensor, key_at: Tensor) -> Tensor:
        batch = torch.arange(batch_size, device=key_at.device)[:, None, None, None]
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=key_at.device)
        return mask_function(batch, head, query_at + kv_offset, key_at + kv_offset)

    return pattern
