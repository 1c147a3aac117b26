"""The attention function that Transformers calls for a patched model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from hf_relpos.calls import AttentionCall
from hf_relpos.compat import transformers as compat
from hf_relpos.engines import attend
from hf_relpos.errors import PatchStateError
from hf_relpos.masks import AttentionMask
from hf_relpos.modeling.configs import RelPosConfigMixin
from hf_relpos.modeling.mask import relpos_mask
from hf_relpos.modeling.sharing import relpos_of
from hf_relpos.modeling.stacks import PLAIN
from hf_relpos.modeling.tracing import as_tensor, is_traced
from hf_relpos.names import ATTENTION_NAME, CLASS_PREFIX
from hf_relpos.terms import RelativeTerms


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
        terms, branch, engine = RelativeTerms(), None, _engine_without_terms(module)
        if position_bias is not None and position_bias.numel() > 1:
            # A T5 that is not patched, with our attention by its own choice: its bias is one number per pair.
            mask = mask.with_added(position_bias)
    else:
        keeps_bias = position_bias is not None and relpos.config.native != "drop"
        engine = _engine_for_trace(relpos.config.engine) if is_traced() else relpos.config.engine
        if relpos.config.window is not None and relpos.schemes:
            mask = replace(mask, window=relpos.config.window)
        call = AttentionCall(query, key, value, mask)
        made = relpos(call, position_bias[0, :, 0] if keeps_bias else None)  # type: ignore[index]
        terms, query, key, branch = made.terms, made.query, made.key, made.branch
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
    if branch is not None:
        output = output + branch
    return output.transpose(1, 2).contiguous(), weights


def _engine_without_terms(module: nn.Module) -> str:
    """That of the model's patch, for what has no terms; but not ``eager``, whose weights nobody asks for there."""
    choices = getattr(getattr(module, "config", None), "relpos", None) or {}
    engine: str = choices.get("engine", "auto")
    return "blockwise" if engine == "eager" else engine


def _engine_for_trace(engine: str) -> str:
    """The engine that is right at every length: a choice by length, or a loop over blocks, holds for one only."""
    if engine in ("auto", "eager"):
        return "eager"
    raise ValueError(
        f"The engine {engine!r} cannot be exported or traced: what it does depends on the length. Patch with "
        "engine='auto' or 'eager' for that, or load the saved model with another engine: "
        "config.relpos = {**config.relpos, 'engine': 'eager'}, then from_pretrained(..., config=config)."
    )


def _refuse_unpatched(module: nn.Module) -> None:
    """Refuse self-attention that has a patched model's config, and no relative positions: they were lost on the way."""
    config = getattr(module, "config", None)
    if not isinstance(config, RelPosConfigMixin):
        return
    family = config.relpos_family
    # A model pickled by 0.1.0 has no marks; what its families do tell cross-attention by is the module itself.
    is_plain = PLAIN in module.__dict__ or family.is_cross_attention("", module)
    if type(module) is getattr(family.modeling, family.attention) and not is_plain:
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
            "mask keeps them apart: they would attend to each other. Pad them instead. (A decoder takes packed "
            "rows with position_ids that start again at 0, no attention_mask, and use_cache=False; continuous batching "
            "is not supported.)"
        )


def _as_mask(
    attention_mask: AttentionMask | Tensor | None, module: nn.Module, query: Tensor, key: Tensor
) -> AttentionMask:
    """The record for whatever came through the model as its mask."""
    if isinstance(attention_mask, AttentionMask):
        return attention_mask
    queries, keys = query.shape[2], key.shape[2]
    # No record means no word on positions: the queries are then the last of the keys, as in a growing cache.
    offset: int | Tensor = keys - queries
    if is_traced():
        offset = as_tensor(offset, query.device)
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
