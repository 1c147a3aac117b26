"""How much a converted model is like the original, by length: the record of it, as a table, a file and a picture."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A field of a row -> its heading, and what the column says.
COLUMNS = {
    "stage": (
        "stage",
        "`start` is before any training, `tables` after that of tables and gates alone, `all` after that of the layers "
        "as well; the last one is the model as it is",
    ),
    "length": ("tokens", "in each sequence, special ones included"),
    "embedding": (
        "embedding",
        "mean cosine of the sequences' embeddings to the original's; beyond its reach, to the mean of those of its "
        "windows",
    ),
    "states": (
        "states",
        "mean cosine of the tokens' last hidden states to the original's; beyond its reach, to those in its windows",
    ),
    "agreement": (
        "same prediction",
        "the share of the head's predictions that are the original's; beyond its reach, of a language model's in "
        "windows",
    ),
    "original_loss": (
        "loss, original",
        "the original's loss as a language model, in nats per token; beyond its reach, a decoder's in windows",
    ),
    "converted_loss": ("loss, converted", "the same of the converted model, at any length"),
}


_HIGHEST_FLOOR = 0.95  # of the picture's cosines: a copy that is nearer still must not look like a collapse


@dataclass(frozen=True)
class FidelityRow:
    """One length after one stage.

    Attributes:
        stage: ``"start"``, ``"tables"`` or ``"all"``.
        length: of the sequences, in tokens, special ones included.
        embedding: mean cosine of the sequences' embeddings to the original's: what a sentence model makes of them, or
            the mean of the last states. Beyond the original's reach, to the mean of those of its windows.
        states: mean cosine of the tokens' last states to the original's, or to those in its windows.
        agreement: the share of the head's predictions that are the original's; beyond its reach, of those of tokens
            that it makes in windows. None where there are none.
        original_loss: the loss of the original as a language model, in nats per token; of a decoder beyond its reach,
            in windows. None where it is none.
        converted_loss: the same of the converted model, at any length.
    """

    stage: str
    length: int
    embedding: float
    states: float
    agreement: float | None = None
    original_loss: float | None = None
    converted_loss: float | None = None


@dataclass(repr=False)
class FidelityReport:
    """What was measured before, and after each stage. ``print`` it, or end a cell of a notebook with it.

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

    @property
    def table(self) -> list[dict[str, str]]:
        """The rows in words, by heading, without what was never measured."""
        return [{COLUMNS[name][0]: _plain(getattr(row, name)) for name in self._shown} for row in self.rows]

    @property
    def markdown(self) -> str:
        """The table in Markdown, and what each of its columns says."""
        rows = self.table
        table = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        meanings = [f"- **{heading}**: {meaning}." for heading, meaning in map(COLUMNS.__getitem__, self._shown)]
        return "\n".join([*lines, "", *meanings])

    @property
    def longest(self) -> int:
        """The length of the longest sequences that were learned from and measured, in tokens."""
        return max(row.length for row in self.rows)

    @property
    def _shown(self) -> list[str]:
        return [name for name in COLUMNS if any(getattr(row, name) is not None for row in self.rows)]

    def __str__(self) -> str:
        if not self.rows:
            return "nothing was measured"
        cells = [list(self.table[0]), *(list(row.values()) for row in self.table)]
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

    def section(self) -> str:
        """A section for a card that somebody else writes, in Markdown."""
        return (
            "\n\n## Relative positions\n\nConverted by `hf_relpos`, to be imported before this model is loaded. How "
            f"near it is to the original, on texts that were held out (it learned from sequences of up to "
            f"{self.longest} tokens):\n\n{self.markdown}\n"
        )

    def figure(self) -> Figure:
        """The cosines over the length, a line for each stage. Needs matplotlib, which is in the ``demo`` extra."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        lowest = min(_HIGHEST_FLOOR, *(min(row.embedding, row.states) for row in self.rows))
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
            margin = 0.05 * (1 - lowest)
            axes.set_ylim(lowest - margin, 1 + margin)  # up to 1, and not only the little by which lengths differ
            axes.ticklabel_format(axis="y", useOffset=False)
            axes.set_title(title)
            axes.grid(alpha=0.25)
            axes.legend(frameon=False)
        return figure

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`figure` to a file. Needs matplotlib.

        Args:
            path: of the picture, for one ``"fidelity.png"``.
        """
        self.figure().savefig(path, dpi=150)

    def __repr__(self) -> str:
        return str(self)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
