"""Write `docs/performance.md` from the kept results: ``python -m benchmarks.report``. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

TARGET = Path(__file__).parent.parent / "docs" / "performance.md"

HEAD = """# Performance

Made by `python -m benchmarks.report` from the files in `benchmarks/results/`; every number comes from a command named
here. Ratios compare with the same work without relative positions, in the same run.
"""

LIMITS = """
## Where it stands

- The fast engine (`banded`) runs on the CPU, without attention dropout, for causality and padding as masks. With
  dropout (BERT and GPT-2 have 0.1 by default) `eager` and `blockwise` run, slower than PyTorch's fused attention.
- Nothing has been measured on a GPU. There, `eager` and `blockwise` run: correct, but not fast.
"""


def table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first row is its head, the first column stands to the left."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join(["---"] + ["---:"] * (len(rows[0]) - 1)) + "|")
    return "\n".join(lines)


def environment(record: dict[str, Any]) -> str:
    """On what a benchmark was measured, in a sentence."""
    hardware, versions = record["hardware"], record["versions"]
    return (
        f"Measured on {record['date']}: {hardware['cpu']}, {hardware['cores']} cores, torch {versions['torch']}, "
        f"transformers {versions['transformers']}, hf_relpos {versions['hf_relpos']}."
    )


def training_step(record: dict[str, Any]) -> str:
    """Seconds per step and ratios, by family and length."""
    parts = [
        "## Training step",
        "`python -m benchmarks.training_step`. Forward and backward, 4 layers, hidden size 768, 12 heads, vocabulary "
        f"8,000, no dropout, float32, {record['threads']} threads. Medians of steps taken in turn. Each cell is the "
        "ratio to the unpatched model with `sdpa`; the first row has its seconds.",
    ]
    rows = record["results"]
    for family in dict.fromkeys(row["family"] for row in rows):
        lengths = list(dict.fromkeys(row["length"] for row in rows if row["family"] == family))
        cells = {(row["model"], row["length"]): row for row in rows if row["family"] == family}
        models = list(dict.fromkeys(model for model, _ in cells))
        lines: list[list[object]] = [[family, *lengths]]
        for model in models:
            plain = model.startswith("unpatched")
            lines.append(
                [model]
                + [
                    f"{row['seconds']:.2f} s" if plain else f"{row['ratio']:.2f}"
                    for row in (cells[model, n] for n in lengths)
                ]
            )
        parts.append(table(lines))
    return "\n\n".join([*parts, environment(record)])


def memory(record: dict[str, Any]) -> str:
    """Peak memory of attention alone, by engine and length."""
    parts = [
        "## Memory of attention",
        "`python -m benchmarks.memory`. Shaw(16), 12 heads of 64, one sequence, float32. Peak over the inputs in MiB. "
        f"{record['method']}",
    ]
    for direction in dict.fromkeys(row["pass"] for row in record["results"]):
        rows = [row for row in record["results"] if row["pass"] == direction]
        lengths = list(dict.fromkeys(row["length"] for row in rows))
        lines: list[list[object]] = [[direction, *lengths]]
        for engine in dict.fromkeys(row["engine"] for row in rows):
            peaks = {row["length"]: row["peak_mib"] for row in rows if row["engine"] == engine}
            lines.append([engine, *("" if peaks.get(n) is None else f"{peaks[n]:.0f}" for n in lengths)])
        parts.append(table(lines))
    return "\n\n".join([*parts, environment(record)])


SECTIONS = {"training_step": training_step, "memory": memory}


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    sections = []
    for name, section in SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            sections.append(section(json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join([HEAD, *(text + "\n" for text in sections), LIMITS.strip() + "\n"])


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
