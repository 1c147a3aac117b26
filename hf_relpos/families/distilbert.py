"""DistilBERT: BERT's positions, in modules with names of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import initialization as init

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding
from hf_relpos.families.open_length import counted
from hf_relpos.families.tables import DroppedTable


class OpenLength:
    """Makes position ids as long as the input: DistilBERT cuts them from a buffer as long as its position table."""

    def forward(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """The embeddings, as DistilBERT makes them."""
        if position_ids is None:
            position_ids = counted(input_ids if input_ids is not None else inputs_embeds)
        return super().forward(input_ids, inputs_embeds, position_ids)  # type: ignore[misc]


class NoSinusoids:
    """Leaves a dropped position table alone, which DistilBERT would fill (``sinusoidal_pos_embds``)."""

    def _init_weights(self, module: Any) -> None:
        if isinstance(module._modules.get("position_embeddings"), DroppedTable):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1])[None])
        else:
            super()._init_weights(module)  # type: ignore[misc]


DISTILBERT = Family(
    package="distilbert",
    config="DistilBertConfig",
    attention="DistilBertSelfAttention",
    num_heads="n_heads",
    head_dim="attention_head_size",
    causal="is_causal",
    natives=(AbsoluteEmbedding(owner="Embeddings", table="position_embeddings"),),
    overrides={"Embeddings": OpenLength, "DistilBertPreTrainedModel": NoSinusoids},
)
