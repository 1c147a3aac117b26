"""One run: a fresh model, its setting, its fine-tuning."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_relpos.comparing.classifier import load_classifier
from hf_relpos.comparing.memory import StepMemory
from hf_relpos.comparing.plan import Job, Plan
from hf_relpos.comparing.training import Run, added_parameters, fine_tune
from hf_relpos.patching import patch_model


@dataclass(frozen=True)
class Result:
    """What one run measured.

    Attributes:
        setting: its name.
        seed: its seed.
        added_parameters: how many the patch added.
        step_mib: memory that the steps added to the process, at their peak, in MiB; None where it was not measured.
        run: losses and scores over the steps, and the time of a step.
    """

    setting: str
    seed: int
    added_parameters: int
    step_mib: float | None
    run: Run

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """The result that ``asdict`` made plain; what JSON has no number for was none."""
        run = {name: [math.nan if one is None else one for one in row] for name, row in _rows(values["run"])}
        return cls(**{**values, "run": Run(**{**values["run"], **run})})

    def numbers(self) -> dict[str, float]:
        """What is compared, by name: all that were measured."""
        measured = {
            **self.run.final(),
            "steps_per_second": 1 / self.run.seconds_per_step,
            "step_mib": self.step_mib,
            "added_parameters": self.added_parameters,
        }
        return {name: value for name, value in measured.items() if value is not None}


def _rows(run: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    return [(name, row) for name, row in run.items() if isinstance(row, list)]


def run_here(plan: Plan, job: Job, source: str, callbacks: Sequence[TrainerCallback] = ()) -> Result:
    """Fine-tune in this process.

    Args:
        plan: what the run is a part of.
        job: the run.
        source: the model it starts from: the plan's, or one that was converted.
        callbacks: what else happens while it trains.
    """
    model = load_classifier(source, plan.tokenizer, plan.data.labels, job.seed)
    if job.setting.relpos is not None and not job.setting.converted:
        patch_model(model, job.setting.relpos)
    memory = [StepMemory()] if plan.memory else []
    with tempfile.TemporaryDirectory(prefix="hf_relpos_compare_") as scratch:
        run = fine_tune(
            model, plan.tokenizer, plan.train, plan.evaluation, plan.budget, job.seed, Path(scratch),
            [*memory, *callbacks],
        )  # fmt: skip
    step_mib = memory[0].mib if memory else None
    return Result(job.setting.name, job.seed, added_parameters(model), step_mib, run)
