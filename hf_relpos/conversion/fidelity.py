"""How much a converted model is like the original, by length: measured on texts that it has not learned from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_relpos.conversion.batches import Batch, Frame, beginnings
from hf_relpos.conversion.labels import Labels
from hf_relpos.conversion.reading import Pool, Reading, read, read_as_original

# How many sequences are measured on: as many as have so many tokens, but at least a few.
_TOKENS, _LEAST = 8192, 8

HEADINGS = {
    "stage": "stage",
    "length": "tokens",
    "embedding": "embedding",
    "states": "states",
    "agreement": "same prediction",
    "original_loss": "loss, original",
    "converted_loss": "loss, converted",
}


@dataclass(frozen=True)
class FidelityRow:
    """One length after one stage.

    Attributes:
        stage: ``"start"``, ``"tables"`` or ``"all"``.
        length: of the sequences, in tokens, special ones included.
        embedding: mean cosine of the sequences' embeddings to the original's: what a sentence model makes of them, or
            the mean of the last states. Beyond the original's reach, to the mean of those of its windows.
        states: mean cosine of the tokens' last states to the original's, or to those in its windows.
        agreement: the share of the head's predictions that are the original's; None without a head, or beyond its
            reach.
        original_loss: the loss of the original as a language model, in nats per token; None where it is none, or
            beyond its reach.
        converted_loss: the same of the converted model, at any length.
    """

    stage: str
    length: int
    embedding: float
    states: float
    agreement: float | None = None
    original_loss: float | None = None
    converted_loss: float | None = None


@dataclass
class FidelityReport:
    """What was measured before, and after each stage. ``print`` it.

    Attributes:
        rows: in the order of measuring.
        seconds: that the conversion took.
        settings: how it was done.
    """

    rows: list[FidelityRow] = field(default_factory=list)
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def final(self) -> list[FidelityRow]:
        """The rows of the last stage."""
        return [row for row in self.rows if row.stage == self.rows[-1].stage]

    def __str__(self) -> str:
        shown = [name for name in HEADINGS if any(getattr(row, name) is not None for row in self.rows)]
        cells = [[HEADINGS[name] for name in shown]]
        cells += [[_plain(getattr(row, name)) for name in shown] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FidelityReport:
        """Read what :meth:`save` wrote."""
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls([FidelityRow(**row) for row in values["rows"]], values["seconds"], values["settings"])

    def progress(self) -> list[dict[str, str]]:
        """The rows for a model card, by heading."""
        shown = [
            one.name for one in fields(FidelityRow) if any(getattr(row, one.name) is not None for row in self.rows)
        ]
        return [{HEADINGS[name]: _plain(getattr(row, name)) for name in shown} for row in self.rows]

    def section(self) -> str:
        """A section for a card that somebody else writes, in Markdown."""
        rows = self.progress()
        table = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
        return (
            "\n\n## Relative positions\n\nConverted by `hf_relpos`, to be imported before this model is loaded. "
            f"Cosines to the original, on texts that were held out:\n\n{lines}\n"
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the cosines over the length, a line for each stage. Needs matplotlib.

        Args:
            path: of the picture, for one ``"fidelity.png"``.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        for axes, name, title in zip(
            figure.subplots(1, 2), ("embedding", "states"), ("embedding", "states of the tokens"), strict=True
        ):
            for stage in dict.fromkeys(row.stage for row in self.rows):
                rows = [row for row in self.rows if row.stage == stage]
                axes.plot([row.length for row in rows], [getattr(row, name) for row in rows], marker="o", label=stage)
            axes.set_xscale("log", base=2)
            lengths = sorted({row.length for row in self.rows})
            axes.set_xticks(lengths, map(str, lengths))
            axes.set_xlabel("tokens")
            axes.set_ylabel("cosine to the original")
            axes.set_title(title)
            axes.grid(alpha=0.25)
            axes.legend(frameon=False)
        figure.savefig(path, dpi=150)


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


def on_device(batch: Batch, model: nn.Module) -> Batch:
    """A batch where a model is."""
    device = next(model.parameters()).device
    moved: Batch = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    if "window_inputs" in batch:
        moved["window_inputs"] = on_device(batch["window_inputs"], model)
    return {**batch, **moved}


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


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
