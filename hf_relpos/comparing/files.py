"""Numbers as a file of JSON, which is there as a whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write numbers; those that JSON has no word for (not a number, infinity) become null."""
    write_whole(path, json.dumps(_finite(content), indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text beside its place, and put it there in one go."""
    beside = path.with_name(f".{path.name}.unfinished")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
