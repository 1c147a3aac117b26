"""The example scripts, run by a recipe with the options a user would give."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
ALWAYS = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "log_level": "error"}

# Names of options and what they are given.
Options = Mapping[str, object]


def run(name: str, output_dir: Path, options: Options) -> dict[str, float]:
    """Run an example in this process; all that it measured."""
    before = sys.argv
    sys.argv = command(name, output_dir, options)
    sys.path.insert(0, str(FOLDER))
    try:
        importlib.import_module(name).main()
    finally:
        sys.path.remove(str(FOLDER))
        sys.argv = before
    return measured(output_dir)


def command(name: str, output_dir: Path, options: Options) -> list[str]:
    """The words of a command line."""
    words = [str(FOLDER / f"{name}.py")]
    folders = {"output_dir": output_dir, "cache_dir": output_dir / "cache"}  # which goes with what it was made of
    for option, value in {**ALWAYS, **options, **folders}.items():
        words += [f"--{option}", str(value)]
    return words


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows as an example reads them."""
    path.write_text("".join(json.dumps(dict(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def measured(output_dir: Path) -> dict[str, float]:
    """What an example has written down."""
    return json.loads((output_dir / "all_results.json").read_text(encoding="utf-8"))
