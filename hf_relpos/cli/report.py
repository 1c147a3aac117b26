"""What the demo tells at its end: a table to read and a JSON file to compute with."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_relpos.cli.training import Run
from hf_relpos.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn")


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


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Align cells in columns: the first to the left, the others to the right; a rule under the first row."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write numbers as JSON, with the versions and the kind of machine they were measured with.

    Numbers that JSON has no word for (not a number, infinity) become null.
    """
    content = {**results, "versions": versions(), "hardware": hardware()}
    path.write_text(json.dumps(_finite(content), indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of this package, of Python, and of the packages that the numbers depend on."""
    found = {"hf_relpos": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def hardware() -> dict[str, Any]:
    """The kind of machine: nothing that tells one machine from another of its kind."""
    summary: dict[str, Any] = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": "cpu",
    }
    if torch.cuda.is_available():
        summary["device"] = torch.cuda.get_device_name()
    return summary


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
