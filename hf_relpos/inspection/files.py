"""The files that are made of what was found in a model."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hf_relpos.inspection.page import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_relpos.inspection.record import Inspection

PAGE, NUMBERS = "index.html", "inspection.json"


def save(inspection: Inspection, folder: Path) -> list[str]:
    """Write a page, the numbers as JSON, and each picture as PNG and SVG into a folder.

    Returns:
        The names of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = save_pictures(inspection.figures(), folder)
    (folder / NUMBERS).write_text(json.dumps(inspection.to_dict()) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(page(inspection, pictures), encoding="utf-8")
    return [PAGE, NUMBERS, *(f"{name}.{kind}" for name in pictures for kind in ("png", "svg"))]


def save_pictures(figures: Mapping[str, Figure], folder: Path) -> dict[str, bytes]:
    """Write each picture as PNG and SVG into a folder that is there.

    Returns:
        The pictures as SVG, by their names.
    """
    from matplotlib import rc_context

    pictures = {}
    with rc_context({"svg.hashsalt": "hf_relpos"}):  # the same pictures give the same files
        for name, figure in figures.items():
            drawn = io.BytesIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
            pictures[name] = drawn.getvalue()
            (folder / f"{name}.svg").write_bytes(pictures[name])
            figure.savefig(folder / f"{name}.png", dpi=150)
    return pictures
