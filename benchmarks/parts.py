"""Files of results made of parts: each says what it measured, on what and when, and can be measured again alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, environment, version_of

Part = dict[str, Any]


def part(of: Mapping[str, Any], results: Sequence[Mapping[str, Any]], **settings: Any) -> Part:
    """One part of a file.

    Args:
        of: what tells this part from the others of its file.
        results: its rows.
        **settings: what else a reader must know: threads, dtype.
    """
    return {"of": dict(of), **environment(), **settings, "results": [dict(row) for row in results]}


def write_parts(name: str, parts: Sequence[Part], folder: Path = RESULTS) -> Path:
    """Put parts into ``results/<name>.json``: each replaces the one that was of the same, all others stay."""
    kept = {_key(old): old for old in read_parts(name, folder)}
    kept.update({_key(new): new for new in parts})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"benchmark": name, "parts": list(kept.values())}, indent=2) + "\n", encoding="utf-8")
    return path


def read_parts(name: str, folder: Path = RESULTS) -> list[Part]:
    """The parts of ``results/<name>.json``; none if there is no such file.

    Raises:
        ValueError: if the file is not made of parts.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    record = json.loads(path.read_text(encoding="utf-8"))
    if "parts" not in record:
        raise ValueError(f"{path} is not made of parts, so nothing can be added to it. Move it away first.")
    return record["parts"]


def with_gpu(made: Part, name: str, cuda: str | None) -> Part:
    """The same part, with the accelerator it was measured on in its hardware."""
    return {**made, "hardware": {**made["hardware"], "gpu": name, "cuda": cuda}}


def with_versions(made: Part, *packages: str) -> Part:
    """The same part, with the versions of more packages."""
    return {**made, "versions": {**made["versions"], **{name: version_of(name) for name in packages}}}


def _key(made: Part) -> str:
    return json.dumps(made["of"], sort_keys=True)
