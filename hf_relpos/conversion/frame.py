"""How sequences are made for a model and its tokenizer."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from hf_relpos.conversion.batches import Frame
from hf_relpos.families import Family
from hf_relpos.modeling import state
from hf_relpos.modeling.stacks import stacks_of


def frame_of(model: PreTrainedModel, family: Family, tokenizer: Any) -> Frame:
    """The frame of a model, patched or not.

    The special tokens around a text are those that the tokenizer puts around a short one.
    """
    config: Any = model.config
    marked = tokenizer("a", return_special_tokens_mask=True)
    ids, special = marked["input_ids"], marked["special_tokens_mask"]
    inside = [place for place, mark in enumerate(special) if not mark] or [0]
    writes = getattr(config, "is_encoder_decoder", False) and model.get_encoder() is not model
    drops = state.is_patched_model(model) and model.config.relpos["native"] == "drop"
    return Frame(
        prefix=tuple(ids[: inside[0]]),
        suffix=tuple(ids[inside[-1] + 1 :]),
        pad=next(
            (one for one in (tokenizer.pad_token_id, config.pad_token_id, tokenizer.eos_token_id) if one is not None), 0
        ),
        reach=None if drops else family.trained_length(config),
        causal=family.geometry(stacks_of(model, family)[0].attentions[0]).causal,
        decoder_start=config.decoder_start_token_id if writes else None,
    )
