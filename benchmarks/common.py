"""What every benchmark needs: the machine in words, fresh processes, tables, files of results.

Imports neither torch nor the package: a process that only starts others stays small and does not disturb them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("hf_relpos", "torch", "transformers")


def environment() -> dict[str, Any]:
    """Date, hardware and versions: without these a number means nothing later on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": {"cpu": cpu_model(), "cores": os.cpu_count(), "memory_gib": memory_gib()},
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}},
    }


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float:
    """The machine's memory in GiB."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed; this repository's own from its source."""
    source = Path(__file__).parent.parent / package / "version.py"
    if source.exists():  # what an editable installation was once called is not what runs
        return source.read_text(encoding="utf-8").split('"')[1]
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def in_fresh_process(module: str, task: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Any:
    """What ``python -m module --task JSON`` prints last, as JSON; run from the repository's root.

    Raises:
        RuntimeError: if the process fails; with what it wrote to stderr.
    """
    run = subprocess.run(
        [sys.executable, "-m", module, "--task", json.dumps(task)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **(env or {})},
    )
    if run.returncode != 0:
        raise RuntimeError(f"{module} failed on {dict(task)} with code {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])


def write_results(name: str, content: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``results/<name>.json``: the environment first, then what was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    record = {"benchmark": name, **environment(), **content}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def print_table(rows: Sequence[Sequence[object]]) -> None:
    """Print rows in columns, the first one to the left; a rule under the first row."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)
        if number == 0:
            print("  ".join("-" * width for width in widths), flush=True)
