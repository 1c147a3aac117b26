"""Notebooks as they are kept: without outputs, counts and what an editor notes of a machine.

``python examples/notebooks/tidy.py`` rewrites those beside this file, after they were edited.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tidy(notebook: dict[str, Any]) -> str:
    """The text of a notebook's file."""
    cells = []
    for cell in notebook["cells"]:
        kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}}
        if cell["cell_type"] == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append({**kept, "source": "".join(cell["source"]).splitlines(keepends=True)})
    whole = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(tidy(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
