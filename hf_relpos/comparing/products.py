"""The files that are made of what was compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_relpos.comparing.files import write_json, write_whole
from hf_relpos.comparing.page import page
from hf_relpos.comparing.table import as_csv
from hf_relpos.inspection.files import save_pictures

if TYPE_CHECKING:
    from hf_relpos.comparing.record import Comparison

PAGE, NUMBERS, ROWS = "index.html", "results.json", "results.csv"


def save(comparison: Comparison, folder: Path) -> list[str]:
    """Write a page, the numbers as JSON and CSV, and each picture as PNG and SVG into a folder.

    Returns:
        The names of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = save_pictures(comparison.figures(), folder)
    write_json(folder / NUMBERS, comparison.to_dict())
    write_whole(folder / ROWS, as_csv(comparison))
    write_whole(folder / PAGE, page(comparison, pictures))
    return [PAGE, NUMBERS, ROWS, *(f"{name}.{kind}" for name in pictures for kind in ("png", "svg"))]
