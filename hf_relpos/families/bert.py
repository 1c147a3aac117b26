"""BERT: learned absolute positions, added to the word embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_relpos.families.base import Family
from hf_relpos.families.native import AbsoluteEmbedding


class OpenLengthEmbeddings:
    """Makes position and token-type ids as long as the input.

    BERT cuts them from two buffers of ``max_position_embeddings`` entries, and fails there on a longer input before
    its position table is even asked.
    """

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **past: Any,
    ) -> Tensor:
        """The embeddings, as BERT makes them. ``past`` is the cache's length, whatever the release calls it."""
        given = input_ids if input_ids is not None else inputs_embeds
        batch, length = given.shape[:2]  # type: ignore[union-attr]
        device = given.device  # type: ignore[union-attr]
        if position_ids is None:
            start = next(iter(past.values()), 0)
            position_ids = (torch.arange(length, device=device) + start)[None]
        if token_type_ids is None:
            token_type_ids = torch.zeros(batch, length, dtype=torch.long, device=device)
        return super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **past,
        )


BERT = Family(
    package="bert",
    config="BertConfig",
    attention="BertSelfAttention",  # cross-attention has a class of its own
    num_heads="num_attention_heads",
    head_dim="attention_head_size",
    causal="is_causal",
    natives=(AbsoluteEmbedding(owner="BertEmbeddings", table="position_embeddings"),),
    overrides={"BertEmbeddings": OpenLengthEmbeddings},
)
