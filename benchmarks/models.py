"""The models whose steps are measured: random weights, the shape of a base model, few layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, patch_model

VOCABULARY = 8000
LAYERS = 4
UNPATCHED = "unpatched, sdpa"
# What each family is patched with, by the name it has in the results.
PATCHES: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {
        "Shaw(8)": {"schemes": Shaw(8)},
        "Shaw(16)": {"schemes": Shaw(16)},
        "Shaw(32)": {"schemes": Shaw(32)},
        "T5Bias()": {"schemes": T5Bias()},
        "ClippedBias(128)": {"schemes": ClippedBias(128)},
    },
    "gpt2": {"Shaw(16)": {"schemes": Shaw(16)}, "T5Bias()": {"schemes": T5Bias()}},
    # The first computes what a stock T5 computes; the second has its own bias, and Shaw's vectors besides.
    "t5": {
        "T5Bias(), native='drop'": {"schemes": T5Bias(), "native": "drop"},
        "Shaw(16)": {"schemes": Shaw(16)},
    },
}
FAMILIES = tuple(PATCHES)
# The shortest sequence of a padded batch is half as long as the longest may be.
LEAST_FILLED = 0.5


def unpatched(family: str, length: int, dropout: float = 0.0, layers: int = LAYERS) -> nn.Module:
    """A stock model in training mode; equal arguments give equal weights.

    Args:
        family: one of ``FAMILIES``.
        length: the longest input it will see.
        dropout: probability with which an attention weight is dropped; nothing else is.
        layers: number of layers, of the encoder and of the decoder where there are both.
    """
    torch.manual_seed(0)
    builder = {"bert": _bert, "gpt2": _gpt2, "t5": _t5}[family]
    return builder(length, dropout, layers).train()


def patched(
    family: str, patch: str, length: int, dropout: float = 0.0, layers: int = LAYERS, **choices: Any
) -> nn.Module:
    """The same model with one of the ``PATCHES``, and other choices of ``RelPosConfig``."""
    config = RelPosConfig(**PATCHES[family][patch], **choices)
    return patch_model(unpatched(family, length, dropout, layers), config)  # type: ignore[type-var]


def batch_of(family: str, length: int, sequences: int, padding: bool = False) -> dict[str, Tensor]:
    """Random tokens and labels; with padding, lengths are uniform in ``[length / 2, length]``. Seeded."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(1, VOCABULARY, (sequences, length), generator=generator)
    batch = {"input_ids": ids, "labels": ids}
    if padding:
        shortest = int(length * LEAST_FILLED)
        lengths = torch.randint(shortest, length + 1, (sequences, 1), generator=generator)
        filled = torch.arange(length) < lengths
        batch = {
            "input_ids": ids.where(filled, 0),
            "labels": ids.where(filled, -100),
            "attention_mask": filled.long(),
        }
        if family == "t5":
            batch["decoder_attention_mask"] = batch["attention_mask"]
    return batch


def _bert(length: int, dropout: float, layers: int) -> nn.Module:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=length,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def _gpt2(length: int, dropout: float, layers: int) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_layer=layers, n_positions=length, bos_token_id=0, eos_token_id=None,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=dropout, use_cache=False,
        )
    )  # fmt: skip


def _t5(length: int, dropout: float, layers: int) -> nn.Module:
    """T5 knows no limit of length, and one dropout for everything: the attention's is set by hand."""
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=512, num_heads=8, num_layers=layers, dropout_rate=0.0,
            pad_token_id=0, decoder_start_token_id=0, use_cache=False,
        )
    )  # fmt: skip
    for module in model.modules():
        if isinstance(module, T5Attention):
            module.dropout = dropout
    return model
