"""How long a text may be: what a model, its tokenizer and a sentence model say of it after a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from hf_relpos.compat import sentence_transformers as sentences

logger = logging.get_logger(__name__)

# Of models whose length is not bounded: as T5 was trained.
_UNBOUNDED = 512


def default_lengths(reach: int | None, causal: bool) -> tuple[int, ...]:
    """The lengths to learn at, for an original that reads so far: up to there, and to three times that.

    Of a length that occurs twice, twice as many tokens are read. Where a token only sees those before it, a long text
    is a short one too, at its beginning: there is nothing to learn from short ones by themselves.
    """
    full = reach or _UNBOUNDED
    if causal:
        return (full, 2 * full, 3 * full)
    return (full // 8, full // 4, full // 2, full, full, 2 * full, 3 * full)


def warn_of_short_lengths(lengths: Sequence[int], reach: int | None) -> None:
    """Say so where the original reads further than the copy is to learn."""
    if reach is not None and max(lengths) < reach:
        logger.warning(
            f"convert: the longest of the lengths is {max(lengths)}, and the model reads {reach} tokens: what it says "
            "of texts longer than those is not learned. Give lengths up to there, and beyond for a copy that reads "
            "further."
        )


def set_lengths(model: Any, inner: PreTrainedModel, tokenizer: Any, longest: int) -> None:
    """Let everything that bounds a text's length say the longest that was learned, where it said less.

    Args:
        model: the converted model; or the sentence model around it.
        inner: the converted model.
        tokenizer: its tokenizer.
        longest: in tokens.
    """
    trained = inner.relpos_family.trained_length(inner.config)
    if trained is not None and trained < longest:
        # Some configs count rows before position 0 too (RoBERTa's).
        inner.config.max_position_embeddings += longest - trained
    tokenizer.model_max_length = max(tokenizer.model_max_length, longest)
    if sentences.is_sentence_model(model) and model.max_seq_length is not None:
        model.max_seq_length = max(model.max_seq_length, longest)
