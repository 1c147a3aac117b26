"""Measures how much a converted model is like the original, on texts that it has not learned from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_relpos.conversion.batches import Batch, Frame, beginnings
from hf_relpos.conversion.fidelity import FidelityRow
from hf_relpos.conversion.labels import Labels
from hf_relpos.conversion.reading import Pool, Reading, on_device, read, read_as_original

# How many sequences are measured on: as many as have so many tokens, but at least a few.
_TOKENS, _LEAST = 8192, 8


@dataclass(frozen=True)
class Examination:
    """Batches of each length, to measure on.

    Attributes:
        batches: by length.
        labelled: the same with labels, to measure the loss of a language model on; empty if it is none.
    """

    batches: dict[int, list[Batch]]
    labelled: dict[int, list[Batch]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        documents: Sequence[Sequence[int]],
        frame: Frame,
        lengths: Sequence[int],
        tokens: int,
        labels: Labels | None,
    ) -> Examination:
        """The beginnings of documents, at each length.

        Args:
            documents: of token ids, without special tokens.
            frame: how sequences are made of them.
            lengths: of the sequences.
            tokens: in a batch, about.
            labels: makes a batch one of a language model; None where the model is none.
        """
        batches: dict[int, list[Batch]] = {}
        for length in lengths:
            count = max(_LEAST, _TOKENS // length)
            contents, rows = beginnings(documents, length - frame.special, count), max(1, tokens // length)
            batches[length] = [frame.batch(contents[row : row + rows]) for row in range(0, len(contents), rows)]
        if labels is None:
            return cls(batches)
        return cls(batches, {length: [labels(batch) for batch in some] for length, some in batches.items()})

    def agreement(self, student: nn.Module, teacher: nn.Module, pool: Pool) -> float:
        """The least of the mean cosines of the embeddings, over the lengths that the original reads."""
        within = {
            length: some for length, some in self.batches.items() if all("windows" not in batch for batch in some)
        }
        rows = Examination(within or self.batches).measure("", student, teacher, pool)
        return min(row.embedding for row in rows)

    @torch.no_grad()
    def measure(self, stage: str, student: nn.Module, teacher: nn.Module, pool: Pool) -> list[FidelityRow]:
        """One row per length.

        Args:
            stage: its name.
            student: the model in conversion, in eval mode.
            teacher: the original, in eval mode.
            pool: makes embeddings.
        """
        return [self._row(stage, length, batches, student, teacher, pool) for length, batches in self.batches.items()]

    def _row(
        self, stage: str, length: int, batches: Sequence[Batch], student: nn.Module, teacher: nn.Module, pool: Pool
    ) -> FidelityRow:
        embeddings, states, same = [], [], []
        for given in batches:
            batch = on_device(given, student)
            theirs, mine = read_as_original(teacher, batch, pool), read(student, batch, pool)
            embeddings.append(functional.cosine_similarity(mine.embedding, theirs.embedding, dim=-1))
            for name, mask in theirs.masks.items():
                cosines = functional.cosine_similarity(mine.states[name][-1], theirs.states[name][-1], dim=-1)
                states.append(cosines[mask.bool()])
            if theirs.logits is not None and mine.logits is not None:
                same.append(_same(mine.logits, theirs))
        labelled = [on_device(batch, student) for batch in self.labelled.get(length, ())]
        within = all("windows" not in batch for batch in batches)
        return FidelityRow(
            stage,
            length,
            embedding=_mean(embeddings),
            states=_mean(states),
            agreement=_mean(same) if same else None,
            original_loss=_loss(teacher, labelled) if labelled and within else None,
            converted_loss=_loss(student, labelled) if labelled else None,
        )


def _same(logits: Tensor, theirs: Reading) -> Tensor:
    """For each prediction whether both models' is the same, 1 or 0."""
    equal = (logits.argmax(-1) == theirs.logits.argmax(-1)).float()  # type: ignore[union-attr]
    return equal if equal.ndim == 1 else equal[list(theirs.masks.values())[-1].bool()]


def _loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    """The mean cross-entropy of the labelled tokens, in nats. Labels stand where their logits are; -100 is none."""
    total, count = 0.0, 0
    for batch in batches:
        inputs = {name: value for name, value in batch.items() if name.endswith(("input_ids", "attention_mask"))}
        logits = model(**inputs).logits
        total += float(
            functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), reduction="sum")
        )
        count += int((batch["labels"] != -100).sum())
    return total / max(count, 1)


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).float().mean())
