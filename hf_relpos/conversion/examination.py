"""Measures how much a converted model is like the original, on texts that it has not learned from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_relpos.conversion.batches import Batch, Frame, beginnings
from hf_relpos.conversion.fidelity import FidelityRow
from hf_relpos.conversion.labels import NONE, Labels
from hf_relpos.conversion.reading import Pool, Reading, on_device, read, read_as_original

# How many sequences are measured on: as many as have so many tokens, but at least a few.
_TOKENS, _LEAST = 8192, 8


@dataclass(frozen=True)
class _Answer:
    """What the original makes of a batch, as far as it is asked about.

    Attributes:
        embedding: ``[rows, dim]``.
        states: the last of each stack, ``[rows, length, dim]``.
        masks: of the tokens that states are known of, bool ``[rows, length]``.
        predictions: of its head, ``[rows, length]`` or ``[rows]``; None without one.
    """

    embedding: Tensor
    states: dict[str, Tensor]
    masks: dict[str, Tensor]
    predictions: Tensor | None

    @classmethod
    def of(cls, reading: Reading) -> _Answer:
        return cls(
            reading.embedding,
            {name: layers[-1] for name, layers in reading.states.items()},
            {name: mask.bool() for name, mask in reading.masks.items()},
            None if reading.logits is None else reading.logits.argmax(-1),
        )


@dataclass(frozen=True)
class Examination:
    """Batches of each length, to measure on. What the original says of them is asked once.

    Attributes:
        batches: by length.
        teacher: the original, in eval mode.
        pool: makes embeddings.
        labelled: the same with labels, to measure the loss of a language model on; empty if it is none.
    """

    batches: dict[int, list[Batch]]
    teacher: nn.Module
    pool: Pool
    labelled: dict[int, list[Batch]] = field(default_factory=dict)
    _answers: dict[int, list[_Answer]] = field(default_factory=dict, init=False)
    _losses_of_original: dict[int, float | None] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        documents: Sequence[Sequence[int]],
        frame: Frame,
        lengths: Sequence[int],
        tokens: int,
        labels: Labels | None,
        teacher: nn.Module,
        pool: Pool,
    ) -> Examination:
        """The beginnings of documents, at each length.

        Args:
            documents: of token ids, without special tokens.
            frame: how sequences are made of them.
            lengths: of the sequences.
            tokens: in a batch, about.
            labels: makes a batch one of a language model; None where the model is none.
            teacher: the original, in eval mode once it is asked.
            pool: makes embeddings.
        """
        batches: dict[int, list[Batch]] = {}
        for length in lengths:
            count = max(_LEAST, _TOKENS // length)
            contents, rows = beginnings(documents, length - frame.special, count), max(1, tokens // length)
            batches[length] = [frame.batch(contents[row : row + rows]) for row in range(0, len(contents), rows)]
        labelled = {} if labels is None else {at: [labels(batch) for batch in some] for at, some in batches.items()}
        return cls(batches, teacher, pool, labelled)

    @torch.no_grad()
    def agreement(self, student: nn.Module) -> float:
        """The least of the mean cosines of the embeddings, over the lengths that the original reads."""
        lengths = [length for length in self.batches if self._within(length)] or list(self.batches)
        return min(self._alike(length, student)[0] for length in lengths)

    @torch.no_grad()
    def measure(self, stage: str, student: nn.Module) -> list[FidelityRow]:
        """One row per length.

        Args:
            stage: its name.
            student: the model in conversion, in eval mode.
        """
        return [
            FidelityRow(stage, length, *self._alike(length, student), *self._losses(length, student))
            for length in self.batches
        ]

    def _within(self, length: int) -> bool:
        """Whether the original reads that far."""
        return all("windows" not in batch for batch in self.batches[length])

    def _alike(self, length: int, student: nn.Module) -> tuple[float, float, float | None]:
        """Cosines of the embeddings and of the states, and the share of equal predictions."""
        embeddings, states, same = [], [], []
        for given, theirs in zip(self.batches[length], self._original(length, student), strict=True):
            mine = read(student, on_device(given, student), self.pool)
            embeddings.append(functional.cosine_similarity(mine.embedding, theirs.embedding, dim=-1))
            for name, mask in theirs.masks.items():
                cosines = functional.cosine_similarity(mine.states[name][-1], theirs.states[name], dim=-1)
                states.append(cosines[mask])
            if theirs.predictions is not None and mine.logits is not None:
                equal = (mine.logits.argmax(-1) == theirs.predictions).float()
                same.append(equal if equal.ndim == 1 else equal[list(theirs.masks.values())[-1]])
        return _mean(embeddings), _mean(states), _mean(same) if same else None

    def _losses(self, length: int, student: nn.Module) -> tuple[float | None, float | None]:
        """The losses of both models; None where there is none."""
        if not self.labelled:
            return None, None
        labelled = [on_device(batch, student) for batch in self.labelled[length]]
        if length not in self._losses_of_original:
            readable = self._within(length) or all("windows" in batch for batch in labelled)
            theirs = (read_as_original(self.teacher, batch, self.pool) for batch in labelled)
            self._losses_of_original[length] = _loss(theirs, labelled) if readable else None
        mine = (read(student, batch, self.pool) for batch in labelled)
        return self._losses_of_original[length], _loss(mine, labelled)

    def _original(self, length: int, student: nn.Module) -> list[_Answer]:
        """What the original makes of the batches of a length, where the student is."""
        if length not in self._answers:
            self._answers[length] = [
                _Answer.of(read_as_original(self.teacher, on_device(batch, student), self.pool))
                for batch in self.batches[length]
            ]
        return self._answers[length]


def _loss(readings: Iterable[Reading], batches: Iterable[Batch]) -> float | None:
    """The mean cross-entropy of the labelled tokens that something is known of, in nats; None without logits.

    Labels stand where their logits are; ``NONE`` is none.
    """
    total, count = 0.0, 0
    for reading, batch in zip(readings, batches, strict=True):
        if reading.logits is None:
            return None
        labels = batch["labels"].masked_fill(list(reading.masks.values())[-1] == 0, NONE)
        logits = reading.logits.flatten(0, 1).float()
        total += float(functional.cross_entropy(logits, labels.flatten(), ignore_index=NONE, reduction="sum"))
        count += int((labels != NONE).sum())
    return total / max(count, 1)


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).float().mean())
