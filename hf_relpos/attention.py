"""The attention function and the mask function that Transformers calls for a patched model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, causal_mask_function

from hf_relpos import compat
from hf_relpos.configuration import ATTENTION_NAME, CLASS_PREFIX, RelPosConfigMixin
from hf_relpos.engines import attend
from hf_relpos.errors import PatchStateError
from hf_relpos.layer import RelPosLayer
from hf_relpos.masks import AttentionMask, Pattern, can_look_at
from hf_relpos.terms import RelativeTerms

# Where an attention module keeps its `SharedFrom` when all layers of its stack share one `relpos`.
SHARED_FROM = "_relpos_stack"


class SharedFrom:
    """Points to the stack's module whose `relpos` its layers share.

    An object of its own, so that PyTorch does not take the stack for a child, and so that copying a layer alone does
    not copy the stack: the copy uses the tables of the original's. It points to the stack, not to its `relpos`, so that
    an adapter that wraps the latter is not bypassed.

    Args:
        stack: the module that has `relpos`.
    """

    def __init__(self, stack: nn.Module) -> None:
        self._stack = stack
        self._copied: dict[int, Any] | None = None

    @property
    def stack(self) -> Any:
        """The stack's module."""
        if self._copied is not None:
            self._stack = self._copied.get(id(self._stack), self._stack)
            self._copied = None
        return self._stack

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedFrom:
        """Points to the stack's copy if the stack is copied too, else to the stack itself."""
        copied = SharedFrom(memo.get(id(self.stack), self.stack))
        if copied._stack is self._stack:
            # The stack may still come: what is met before it is copied before it. The first use finds out.
            copied._copied = memo
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Where it points to; for pickle, which follows it."""
        return {"_stack": self.stack, "_copied": None}


def relpos_of(attention: nn.Module) -> RelPosLayer | None:
    """The relative positions an attention module uses, its own or its stack's; None if it has none."""
    own = attention._modules.get("relpos")
    if own is None and SHARED_FROM in attention.__dict__:
        if getattr(attention, "_is_replica", False):
            raise RuntimeError(
                "torch.nn.DataParallel cannot run a model patched with share_layers=True: its copies of the layers"
                " would all use the first device's tables. Use DistributedDataParallel (torchrun, accelerate launch),"
                " or patch without share_layers."
            )
        own = attention.__dict__[SHARED_FROM].stack.relpos
    return own  # type: ignore[return-value]


def relpos_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: AttentionMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a patched model, in the form Transformers' attention interface asks for.

    Args:
        module: the attention module that calls; cross-attention has no ``relpos`` and runs plain.
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``, cached keys included.
        value: like ``key``.
        attention_mask: what :func:`relpos_mask` made; or a user's own 4-D tensor; or None.
        scaling: factor of the scores; None means ``head_dim ** -0.5``.
        dropout: probability with which a weight is dropped.
        position_bias: the native bias as a table over offsets ``[1, heads, 1, 2k + 1]`` (T5), or None.
        **kwargs: what other attention functions may use.

    Returns:
        The output ``[batch, queries, heads, value_dim]``, and the weights ``[batch, heads, queries, keys]`` if the
        model records them.

    Raises:
        ValueError: if the mask does not fit, the input is packed in a way only flash kernels know of, or the model is
            exported with an engine that cannot be.
    """
    relpos = relpos_of(module)
    mask = _as_mask(attention_mask, module, query, key)
    if kwargs.get("cu_seq_lens_q") is not None:
        _refuse_packed_for_flash(mask)
    if relpos is None:
        _refuse_unpatched(module)
        terms, engine = RelativeTerms(), "auto"
        if position_bias is not None and position_bias.numel() > 1:
            # A T5 that is not patched, with our attention by its own choice: its bias is one number per pair.
            mask = mask.with_added(position_bias)
    else:
        keeps_bias = position_bias is not None and relpos.config.native != "drop"
        terms = relpos(query, position_bias[0, :, 0] if keeps_bias else None)  # type: ignore[index]
        engine = _engine_for_trace(relpos.config.engine) if _is_traced() else relpos.config.engine
        if relpos.config.window is not None and relpos.schemes:
            mask = replace(mask, window=relpos.config.window)
    output, weights = attend(
        query,
        key,
        value,
        terms,
        mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout,
        engine=engine,
        weights=compat.weights_wanted(),
    )
    return output.transpose(1, 2).contiguous(), weights


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
    if _is_traced():
        q_offset = _as_tensor(q_offset, device)
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


def _is_traced() -> bool:
    """Whether the model is recorded, to run at other lengths than this one: ``torch.export``, ONNX, ``torch.jit``.

    Where engines know the queries' position as a number, they lay out offsets by comparing lengths, and the record
    would keep the outcome. The position as a tensor makes them compute the offset of every pair.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def _as_tensor(number: int | torch.SymInt | Tensor, device: torch.device | None) -> Tensor:
    """A position as a tensor. A record keeps how it follows from the lengths, which `torch.as_tensor` would not."""
    if isinstance(number, torch.SymInt):
        return torch.scalar_tensor(number, dtype=torch.long, device=device)  # type: ignore[arg-type]
    return torch.as_tensor(number, device=device)


def _engine_for_trace(engine: str) -> str:
    """The engine that is right at every length: a choice by length, or a loop over blocks, holds for one only."""
    if engine in ("auto", "eager"):
        return "eager"
    raise ValueError(
        f"The engine {engine!r} cannot be exported or traced: what it does depends on the length. Patch with "
        "engine='auto' or 'eager' for that, or load the saved model with another engine: "
        "config.relpos = {**config.relpos, 'engine': 'eager'}, then from_pretrained(..., config=config)."
    )


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


def _refuse_unpatched(module: nn.Module) -> None:
    """Refuse self-attention that has a patched model's config, and no relative positions: they were lost on the way."""
    config = getattr(module, "config", None)
    if not isinstance(config, RelPosConfigMixin):
        return
    family = config.relpos_family
    if type(module) is getattr(family.modeling, family.attention) and not family.is_cross_attention("", module):
        raise PatchStateError(
            f"A {type(module).__name__} with a {type(config).__name__} has no relative positions: its model was built "
            "by a class that knows nothing of them. Load it through an Auto class, or a "
            f"{CLASS_PREFIX}... class of hf_relpos. For a plain model, build it from a plain config: patch_model makes "
            "the config of the model it patches a patched one."
        )


def _refuse_packed_for_flash(mask: AttentionMask) -> None:
    """Refuse sequences packed into one row whose bounds (``cu_seq_lens_q``) the mask does not know."""
    if mask.pattern is None and mask.dense is None:
        raise ValueError(
            "The sequences are packed into one row for flash attention (cu_seq_lens_q), and nothing in the attention "
            "mask keeps them apart: they would attend to each other. Pad them instead. (GPT-2 takes packed rows with "
            "position_ids that start again at 0, no attention_mask, and use_cache=False; continuous batching is not "
            "supported.)"
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


def _as_mask(
    attention_mask: AttentionMask | Tensor | None, module: nn.Module, query: Tensor, key: Tensor
) -> AttentionMask:
    """The record for whatever came through the model as its mask."""
    if isinstance(attention_mask, AttentionMask):
        return attention_mask
    queries, keys = query.shape[2], key.shape[2]
    # No record means no word on positions: the queries are then the last of the keys, as in a growing cache.
    offset: int | Tensor = keys - queries
    if _is_traced():
        offset = _as_tensor(offset, query.device)
    mask = AttentionMask(query_length=queries, key_length=keys, query_offset=offset)
    if attention_mask is None:
        return replace(mask, causal=bool(getattr(module, "is_causal", False)))
    mask = replace(mask, dense=attention_mask)
    if keys > queries and not torch.compiler.is_compiling() and relpos_of(module) is not None:
        _refuse_unfilled_cache(mask, query, key)
    return mask


def _refuse_unfilled_cache(mask: AttentionMask, query: Tensor, key: Tensor) -> None:
    """A user's own 4-D mask does not tell where the queries are; refuse where they cannot be the last of the keys."""
    mask.check(query.shape, key.shape)
    last = mask.allowed(
        slice(mask.query_length - 1, mask.query_length), slice(mask.key_length - 1, mask.key_length), query.device
    )
    if last is not None and not last.any():
        raise ValueError(
            f"A 4-D attention mask hides the last of {mask.key_length} keys from the last of {mask.query_length} "
            "queries, so the queries' positions among the keys are unknown (a static cache has unfilled keys at its "
            "end). Pass a 2-D attention mask, or use a dynamic cache."
        )


def register() -> None:
    """Make the two functions known to Transformers under one name (again, harmlessly, if called twice)."""
    AttentionInterface.register(ATTENTION_NAME, relpos_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, relpos_mask)
