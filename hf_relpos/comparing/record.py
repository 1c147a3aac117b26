"""What was compared, as one record: to print, to draw, to compute with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_relpos.comparing.environment import hardware
from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.products import save
from hf_relpos.comparing.run import Result
from hf_relpos.comparing.table import as_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What `Comparison.to_dict` has beside the plan.
_MADE_OF_RUNS = ("summary", "runs", "hardware")


@dataclass(frozen=True)
class Spread:
    """A number over the seeds.

    Attributes:
        mean: of all seeds.
        deviation: the standard deviation of the sample; None for a single seed.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some values."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Position settings, fine-tuned alike with each seed. ``print`` it.

    Attributes:
        plan: what was compared, and how, as JSON has it.
        results: those of all runs, in the order of the plan.
        hardware: the kind of machine.
    """

    plan: Mapping[str, Any]
    results: tuple[Result, ...]
    hardware: Mapping[str, Any]

    @classmethod
    def of(cls, plan: Mapping[str, Any], results: Sequence[Result]) -> Comparison:
        """That of a plan whose runs are finished."""
        return cls(plan, tuple(results), hardware())

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Comparison:
        """The comparison that :meth:`to_dict` made plain, such as the ``results.json`` of one that was saved.

        Raises:
            ComparisonError: for what is none.
        """
        try:
            plan = {name: value for name, value in kept.items() if name not in _MADE_OF_RUNS}
            runs = [{name: value for name, value in run.items() if name != "final"} for run in kept["runs"]]
            return cls(plan, tuple(map(Result.from_dict, runs)), kept["hardware"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ComparisonError(
                f"This is no comparison ({type(error).__name__}: {error}). Give what `Comparison.to_dict` gave, or "
                "what the results.json of a saved one holds."
            ) from error

    @property
    def names(self) -> list[str]:
        """The settings' names."""
        return [setting["name"] for setting in self.plan["settings"]]

    def runs_of(self, name: str) -> list[Result]:
        """The results of a setting, one for each seed."""
        return [result for result in self.results if result.setting == name]

    def summary(self) -> dict[str, dict[str, Spread]]:
        """For each setting, each number that was measured, over the seeds."""
        return {name: _over_seeds([result.numbers() for result in self.runs_of(name)]) for name in self.names}

    def table(self) -> str:
        """A row for each setting: mean and standard deviation over the seeds."""
        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the plan, the summary, all runs with their curves, and the kind of machine."""
        summary = {name: {key: asdict(one) for key, one in row.items()} for name, row in self.summary().items()}
        runs = [{**asdict(result), "final": result.numbers()} for result in self.results]
        return {**self.plan, "summary": summary, "runs": runs, "hardware": self.hardware}

    def figures(self) -> dict[str, Figure]:
        """The pictures of it, by their names. Needs matplotlib, which is in the ``demo`` extra."""
        from hf_relpos.comparing.drawing import draw

        return draw(self)

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write a page to look at, the numbers as JSON and CSV, and the pictures as PNG and SVG. Needs matplotlib.

        Args:
            folder: made if it does not exist.

        Returns:
            The names of the files.
        """
        return save(self, Path(folder))

    def __repr__(self) -> str:
        return self.table()


def _over_seeds(rows: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {key: Spread.of([row[key] for row in rows]) for key in rows[0]}
