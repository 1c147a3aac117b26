"""The model that is fine-tuned: a pretrained one with a new head, and its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import logging as transformers_logging

from hf_relpos.comparing.errors import ComparisonError


def load_tokenizer(source: str, max_length: int, bounded: bool) -> PreTrainedTokenizerBase:
    """The tokenizer, able to pad.

    Args:
        source: A folder, or an id on the Hub.
        max_length: The tokens after which texts will be cut off.
        bounded: Whether the model keeps the positions that bound what it can read.

    Raises:
        ComparisonError: If it cannot pad, or if texts of that length do not fit.
    """
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=_is_local(source))
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ComparisonError(
                f"The tokenizer of {source} has neither a padding nor an end token, so it cannot pad."
            )
        tokenizer.pad_token = tokenizer.eos_token
    special = tokenizer.num_special_tokens_to_add()
    if max_length <= special:
        raise ComparisonError(
            f"`max_length` is {max_length}, but {source} adds {special} tokens to every text. Give `max_length` "
            f"{special + 1} or more."
        )
    if bounded and max_length > tokenizer.model_max_length:
        raise ComparisonError(
            f"`max_length` is {max_length}, but {source} was trained with at most {tokenizer.model_max_length} tokens. "
            f"Give `max_length` {tokenizer.model_max_length} or less, or drop the positions it was trained with."
        )
    return tokenizer


def load_classifier(source: str, tokenizer: PreTrainedTokenizerBase, labels: list[str], seed: int) -> PreTrainedModel:
    """The classifier with a new head, the same one for the same seed."""
    set_seed(seed)
    with quietly():
        return AutoModelForSequenceClassification.from_pretrained(
            source,
            local_files_only=_is_local(source),
            ignore_mismatched_sizes=True,  # of a head for other classes, which the new one replaces
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float32,
        )


@contextmanager
def quietly() -> Iterator[None]:
    """Load without a report on parts that are new or left out, and without a bar."""
    logger, bars = logging.getLogger("transformers.modeling_utils"), transformers_logging.is_progress_bar_enabled()
    logger.addFilter(_only_errors)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.removeFilter(_only_errors)
        if bars:
            transformers_logging.enable_progress_bar()


def _only_errors(record: logging.LogRecord) -> bool:
    """A filter, since a logger's level also decides what Transformers does."""
    return record.levelno >= logging.ERROR


def _is_local(source: str) -> bool:
    """Whether a model is a folder here, so that nothing needs to be asked of the Hub."""
    return Path(source).is_dir()
