"""What rules go by: the model's positions, the task, and how long the texts are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hf_relpos.errors import TextsError
from hf_relpos.texts import Texts, in_words, read_texts

# What a model is to do -> what that is, for readers.
TASKS = {
    "classification": "one label for each text, or pair of texts",
    "embedding": "one vector for each text",
    "token-classification": "one label for each token",
    "question-answering": "a span of the text",
    "masked-lm": "masked tokens are predicted",
    "generation": "a decoder goes on with a text",
    "seq2seq": "another text is written: translation, summarisation",
}

_AT_ONCE = 64  # texts given to the tokenizer together


@dataclass(frozen=True)
class Lengths:
    """How long texts are, in tokens, special ones included.

    Attributes:
        texts: how many were measured.
        median: half of them are no longer than this.
        most: 95 of 100 are no longer than this.
        longest: none is longer.
    """

    texts: int
    median: int
    most: int
    longest: int

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Lengths:
        """The summary of some lengths, at least one."""
        ordered = sorted(lengths)

        def no_longer(share: float) -> int:
            return ordered[math.ceil(share * len(ordered)) - 1]

        return cls(len(ordered), no_longer(0.5), no_longer(0.95), ordered[-1])

    def __str__(self) -> str:
        return (
            f"{self.texts:,} read: half of them have at most {self.median:,} tokens, 95 % at most {self.most:,}, the "
            f"longest {self.longest:,}"
        )


@dataclass(frozen=True)
class Situation:
    """What rules go by.

    Attributes:
        family: the model's type.
        positions: what positions it was pretrained with, in words; None if it has none.
        absolute: whether those are absolute ones.
        trained_length: how many tokens it can read; None if any number.
        mostly_trained_at: how many tokens nine in ten sequences of its pretraining had at most, where published.
        task: one of ``TASKS``.
        lengths: of the texts.
    """

    family: str
    positions: str | None
    absolute: bool
    trained_length: int | None
    mostly_trained_at: int | None
    task: str
    lengths: Lengths


def measure_lengths(texts: Texts, tokenizer: Any, column: str, samples: int) -> Lengths:
    """How long the first texts of a source are.

    Raises:
        TextsError: if there is no such source, or no text in it.
    """
    lengths: list[int] = []
    source = itertools.islice(read_texts(texts, column), samples)
    while some := list(itertools.islice(source, _AT_ONCE)):
        lengths += map(len, tokenizer(some, verbose=False)["input_ids"])
    if not lengths:
        raise TextsError(f"`texts` ({in_words(texts)}) has no text in it. Give some.")
    return Lengths.of(lengths)
