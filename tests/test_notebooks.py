"""The notebooks run from their first cell to the last, are kept without outputs, and can be found."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")


def test_there_are_notebooks():
    assert {"quickstart", "convert", "compare"} <= set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs_and_traces_of_a_machine(name):
    tidy = runpy.run_path(str(FOLDER / "tidy.py"))["tidy"]
    notebook = json.loads(text_of(name))
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z-]+", one) for one in names), "cells have names that say what they do"
    assert text_of(name) == tidy(notebook), "rewrite it: python examples/notebooks/tidy.py"


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "docs/index.md", "examples/README.md"])
def test_each_notebook_is_linked_from(page):
    linked = re.findall(r"\]\(([^)]+\.ipynb)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert {((ROOT / page).parent / link).resolve() for link in linked} == {
        FOLDER / f"{name}.ipynb" for name in NOTEBOOKS
    }


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_of_a_notebook_lead_somewhere(name):
    words = "".join(
        "".join(cell["source"]) for cell in json.loads(text_of(name))["cells"] if cell["cell_type"] == "markdown"
    )
    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", words)
    assert links
    for file, heading in links:
        text = (FOLDER / file).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert not heading or heading in {one.lower().replace(" ", "-") for one in headings}, (file, heading)


@pytest.mark.notebooks
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_the_first_cell_to_the_last_and_has_a_picture(name, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs the notebooks extra", exc_type=ImportError)
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nothing of a user's own
    notebook = nbformat.reads(text_of(name), as_version=4)
    nbformat.validate(notebook)
    work = tmp_path / "work"
    work.mkdir()
    NotebookClient(notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(work)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert not any("Traceback" in output.get("text", "") for output in outputs)
