"""Labels of a language model, made of the texts themselves: what comes next, or what was hidden."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_relpos.conversion.batches import Batch, Frame

# Makes a batch with labels of one without.
Labels = Callable[[Batch], Batch]

NONE = -100  # stands where there is nothing to predict, as PyTorch's cross-entropy knows it
_HIDDEN_SHARE = 0.15


def labels_for(model: PreTrainedModel, frame: Frame, tokenizer: Any, seed: int) -> Labels | None:
    """What makes the labels of a model; None for one that does not predict tokens."""
    if model.get_output_embeddings() is None:
        return None
    if frame.decoder_start is not None:
        return _written
    if frame.causal:
        return _next
    return None if tokenizer.mask_token_id is None else partial(_hidden, mask_id=tokenizer.mask_token_id, seed=seed)


def _next(batch: Batch) -> Batch:
    """Each token's label is the token after it."""
    ids = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, NONE)
    return {**batch, "labels": torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], NONE)], dim=1)}


def _written(batch: Batch) -> Batch:
    """The decoder's label is the token that it is given next: the text that the encoder reads."""
    length = batch["decoder_input_ids"].shape[1]
    ids = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, NONE)
    return {**batch, "labels": ids[:, :length]}


def _hidden(batch: Batch, mask_id: int, seed: int) -> Batch:
    """Some tokens are replaced by the mask token; their labels are what they were. In windows they still stand."""
    ids = batch["input_ids"]
    drawn = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed))
    hidden = (drawn < _HIDDEN_SHARE) & (batch["attention_mask"] == 1)
    whole = {name: value for name, value in batch.items() if not name.startswith("window")}
    return {**whole, "input_ids": ids.masked_fill(hidden, mask_id), "labels": ids.masked_fill(~hidden, NONE)}
