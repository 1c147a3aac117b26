"""What was found in a model, as one record: to print, to draw, to compute with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_relpos.inspection.attention import AttentionUse
from hf_relpos.inspection.files import save
from hf_relpos.inspection.parameters import Learned
from hf_relpos.inspection.words import in_words
from hf_relpos.modeling.report import PatchReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Inspection:
    """What a patched model has learned about positions, and how much its attention goes by them. ``print`` it.

    Attributes:
        report: what was patched.
        parameters: how many parameters each scheme and each kind of gate has.
        learned: tables and gates.
        attention: what positions do to attention; None where no texts were read.
    """

    report: PatchReport
    parameters: dict[str, int]
    learned: Learned
    attention: AttentionUse | None = None

    def figures(self) -> dict[str, Figure]:
        """The pictures of it, by their names. Needs matplotlib, which is in the ``demo`` extra."""
        from hf_relpos.inspection.drawing import draw

        return draw(self)

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write a page to look at, the numbers as JSON, and the pictures as PNG and SVG. Needs matplotlib.

        Args:
            folder: made if it does not exist.

        Returns:
            The names of the files.
        """
        return save(self, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: numbers with six digits; null for what is not a number."""
        learned, attention = self.learned, self.attention
        found: dict[str, Any] = {
            "model": self.report.model,
            "base": self.report.base,
            "relpos": self.report.config.to_dict(),
            "parameters": {**self.parameters, "in all": self.report.total},
            "tables": {kind: vars(table) for kind, table in learned.tables.items()},
            "gates": {"layers": learned.gate_layers, "values": learned.gates},
            "native_gates": learned.native,
        }
        if attention is not None:
            found["attention"] = {**vars(attention), "relative_share": attention.relative_share}
        return _plain(found)

    def __repr__(self) -> str:
        return in_words(self)


def _plain(value: Any) -> Any:
    """Records, arrays and numbers as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
