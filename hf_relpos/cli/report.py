"""What the demo tells at its end: a table to read and a JSON file to compute with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_relpos.comparing.columns import format_table
from hf_relpos.comparing.environment import hardware, versions
from hf_relpos.comparing.files import write_json
from hf_relpos.comparing.training import Run


def comparison(runs: Mapping[str, Run], added: Mapping[str, int]) -> str:
    """The table of both models, in plain text.

    Args:
        runs: What was measured, by the model's name.
        added: Parameters added to each.
    """
    rows = [
        ["", *runs],
        ["accuracy", *(f"{run.accuracy[-1]:.4f}" for run in runs.values())],
        ["macro-F1", *(f"{run.f1_macro[-1]:.4f}" for run in runs.values())],
        ["validation loss", *(f"{run.eval_loss[-1]:.4f}" for run in runs.values())],
        ["seconds per step", *(f"{run.seconds_per_step:.3f}" for run in runs.values())],
        ["added parameters", *(f"{added[name]:,}" for name in runs)],
    ]
    return format_table(rows)


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write numbers as JSON, with the versions and the kind of machine they were measured with."""
    write_json(path, {**results, "versions": versions(), "hardware": hardware()})
