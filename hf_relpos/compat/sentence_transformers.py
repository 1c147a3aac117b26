"""sentence-transformers: the Transformers model inside a sentence model, and what stands around it."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def is_sentence_model(model: object) -> bool:
    """Whether something is a ``SentenceTransformer``; the package is not imported to tell."""
    package = sys.modules.get("sentence_transformers")
    return package is not None and isinstance(model, package.SentenceTransformer)


def inner_model(sentences: Any) -> PreTrainedModel | None:
    """The Transformers model that a sentence model starts with; None if it starts with something else."""
    return next((inner for inner in sentences[0].children() if isinstance(inner, PreTrainedModel)), None)


def replace_inner(sentences: Any, model: PreTrainedModel) -> None:
    """Put a model in the place of that one."""
    first = sentences[0]
    name = next(name for name, inner in first.named_children() if isinstance(inner, PreTrainedModel))
    setattr(first, name, model)


def embed(sentences: Any, states: Tensor, mask: Tensor) -> Tensor:
    """The embeddings ``[rows, dim]`` that a sentence model's pooling, and what follows it, make of states.

    Args:
        sentences: the sentence model.
        states: ``[rows, length, dim]``, the last ones of the model inside.
        mask: ``[rows, length]``.
    """
    features: dict[str, Any] = {"token_embeddings": states, "attention_mask": mask}
    modules: list[nn.Module] = list(sentences)[1:]
    for module in modules:
        features = module(features)
    return features["sentence_embedding"]
