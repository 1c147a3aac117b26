"""What is read in each step: sequences of one length, cut out of documents, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

Batch = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """How a sequence is made of tokens, and how far the original can read.

    Attributes:
        prefix: the special tokens before the tokens of a text.
        suffix: those after them.
        pad: the id that fills rows up.
        reach: the longest sequence that the original reads; None if it reads any.
        causal: whether a token only sees those before it.
        decoder_start: the id a decoder starts with, in an encoder-decoder.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    reach: int | None
    causal: bool
    decoder_start: int | None = None

    @property
    def special(self) -> int:
        """How many special tokens there are."""
        return len(self.prefix) + len(self.suffix)

    def around(self, ids: Sequence[int]) -> list[int]:
        """A sequence: tokens with the special ones around them."""
        return [*self.prefix, *ids, *self.suffix]

    def batch(self, contents: Sequence[Sequence[int]], weights: Sequence[float] | None = None) -> Batch:
        """Tokens of texts as a batch, padded on the right.

        Args:
            contents: the tokens of each row, without special ones.
            weights: how much each row counts; equally much by default.

        Returns:
            ``input_ids``, ``attention_mask`` ``[rows, length]`` and ``weights`` ``[rows]``; for an encoder-decoder,
            ``decoder_input_ids`` and ``decoder_attention_mask`` as well: the decoder writes the same text. Where the
            original cannot read the longest row, ``windows``: see :class:`Window`.
        """
        rows = [self.around(ids) for ids in contents]
        batch: Batch = self._padded(rows)
        batch["weights"] = torch.tensor(weights or [1 / len(rows)] * len(rows))
        reach = self.reach
        if reach is not None and max(map(len, rows)) > reach:
            batch["windows"] = [window for row, ids in enumerate(contents) for window in self._windows(row, ids, reach)]
            batch["window_inputs"] = self._padded([self.around(window.ids) for window in batch["windows"]])
        if self.decoder_start is not None:
            written = [[self.decoder_start, *row[:-1]][:reach] for row in rows]
            for name, tensor in self._padded(written).items():
                batch[f"decoder_{name}"] = tensor
        return batch

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.pad)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def _windows(self, row: int, ids: Sequence[int], reach: int) -> list[Window]:
        """Overlapping windows of a text, each with the part of it in which the original sees enough to both sides."""
        size = reach - self.special
        if len(ids) <= size:
            return [Window(row, tuple(ids), len(self.prefix), len(self.prefix), len(ids))]
        margin = size // 2 if self.causal else size // 4
        starts = [*range(0, len(ids) - size, size - size // 2), len(ids) - size]
        ends = [start + size - (0 if self.causal else margin) for start in starts[:-1]] + [len(ids)]
        windows, told = [], 0
        for start, end in zip(starts, ends, strict=True):
            windows.append(
                Window(
                    row,
                    tuple(ids[start : start + size]),
                    source=len(self.prefix) + told - start,
                    target=len(self.prefix) + told,
                    count=end - told,
                )
            )
            told = end
        return windows


@dataclass(frozen=True)
class Window:
    """A part of a long sequence that the original reads by itself, and what is believed of it: the middle.

    Attributes:
        row: the sequence's row.
        ids: the tokens of the part.
        source: where in the window the believed tokens begin.
        target: where in the sequence they are.
        count: how many they are.
    """

    row: int
    ids: tuple[int, ...]
    source: int
    target: int
    count: int


class Steps(Dataset):
    """One batch for each step, and of it one share for each process: batch ``step * shares + share``.

    Nothing is drawn in the order of asking: a step's batch follows from the seed and its number alone. So a training
    that is interrupted sees what it would have seen, and processes share the batch that one would have had.

    Args:
        documents: of token ids, without special tokens.
        frame: how sequences are made of them.
        lengths: of the sequences, special tokens included; one of them is drawn for each step, so that about as many
            tokens are read at each.
        tokens: in a step, about.
        steps: how many there are.
        seed: of everything drawn.
        shares: into how many parts a batch is dealt out.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[int]],
        frame: Frame,
        lengths: Sequence[int],
        tokens: int,
        steps: int,
        seed: str,
        shares: int = 1,
    ) -> None:
        self.documents = documents
        self.frame = frame
        self.lengths = lengths
        self.tokens = tokens
        self.steps = steps
        self.seed = seed
        self.shares = shares

    def __len__(self) -> int:
        return self.steps * self.shares

    def __getitem__(self, index: int) -> Batch:
        step, share = divmod(index, self.shares)
        draw = random.Random(f"{self.seed} {step}")
        (length,) = draw.choices(self.lengths, _shares(self.lengths, self.tokens))
        contents = [self._content(draw, length - self.frame.special) for _ in range(max(1, self.tokens // length))]
        own = contents[share :: self.shares]
        # The gradients of processes are averaged, so each row counts once for each process. Where a process has none,
        # it reads one that counts nothing.
        weight = self.shares / len(contents) if own else 0.0
        return self.frame.batch(own or contents[:1], [weight] * max(1, len(own)))

    def _content(self, draw: random.Random, size: int) -> Sequence[int]:
        """Tokens for one sequence: a document's beginning or a part of it, or where that is short, several joined."""
        document = draw.choice(self.documents)
        start = draw.randrange(max(1, len(document) - size + 1)) if draw.random() < 0.5 else 0
        ids = document[start : start + size]
        return filled(draw, ids, size, self.documents) if draw.random() < 0.5 else ids


def tokens_in_a_step(lengths: Sequence[int], tokens: int) -> float:
    """How many tokens a step of :class:`Steps` reads, in the mean."""
    return len(lengths) / sum(_shares(lengths, tokens))


def _shares(lengths: Sequence[int], tokens: int) -> list[float]:
    """How often each length is drawn: a step reads one sequence at least, so the long ones come less often."""
    return [1 / max(length, tokens) for length in lengths]


def filled(draw: random.Random, ids: Sequence[int], size: int, documents: Sequence[Sequence[int]]) -> list[int]:
    """Tokens, and those of documents that are drawn, until there are so many."""
    ids = list(ids)
    while len(ids) < size:
        ids += draw.choice(documents)
    return ids[:size]


def beginnings(documents: Sequence[Sequence[int]], size: int, count: int) -> list[list[int]]:
    """The first tokens of documents; of one that has fewer, those of the documents after it as well.

    Args:
        documents: of token ids.
        size: how many tokens.
        count: of how many documents, at most.
    """
    found = []
    for number in range(min(count, len(documents))):
        ids: list[int] = []
        for document in (*documents[number:], *documents[:number]):
            ids += document[: size - len(ids)]
        found.append(ids)
    return found
