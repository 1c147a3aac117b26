"""Embeddings of BERT's kind made free of their buffers, which are as long as the position table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class OpenTokenTypes:
    """Makes token-type ids as long as the input.

    BERT and its kin cut them from a buffer of ``max_position_embeddings`` entries, all zero, and fail there on a longer
    input before their position table is even asked.
    """

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **past: Any,
    ) -> Tensor:
        """The embeddings, as the family makes them. ``past`` is the cache's length, whatever the release calls it."""
        if token_type_ids is None:
            given: Any = input_ids if input_ids is not None else inputs_embeds
            token_type_ids = torch.zeros(given.shape[:2], dtype=torch.long, device=given.device)
        return super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **past,
        )


class OpenLengthEmbeddings(OpenTokenTypes):
    """The same with position ids, where they come from such a buffer too."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **past: Any,
    ) -> Tensor:
        """The embeddings, as the family makes them. ``past`` is the cache's length, whatever the release calls it."""
        if position_ids is None:
            position_ids = counted(input_ids if input_ids is not None else inputs_embeds, next(iter(past.values()), 0))
        return super().forward(input_ids, token_type_ids, position_ids, inputs_embeds, **past)


def counted(given: Any, start: int | Tensor = 0) -> Tensor:
    """Position ids ``[1, length]`` for an input ``[batch, length, ...]`` that begins at ``start``."""
    return (torch.arange(given.shape[1], device=given.device) + start)[None]
