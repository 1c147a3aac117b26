"""`hf-relpos inspect`: what it prints and writes, what its plots show, and what it refuses."""

from __future__ import annotations

import base64
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import tiny
from test_pipelines import tokenizer
from tiny import patched

from hf_relpos import Inspection, inspect_model
from hf_relpos.cli import inspect as command
from hf_relpos.cli import main
from hf_relpos.inspection.attention import WITHOUT_RELATIVE
from hf_relpos.inspection.page import SECTIONS

pytest.importorskip("matplotlib", reason="plots are drawn with matplotlib, from the demo extra")

TEXTS = ["w1 w2 w3 w4 w5 w6 w7", "w7 w1 w30 w2 w2"]


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder to work in, with a patched model and texts."""
    monkeypatch.chdir(tmp_path)
    patched("bert", "sum").save_pretrained("model")
    tokenizer().save_pretrained("model")
    tiny.build("bert").save_pretrained("stock")
    tokenizer().save_pretrained("stock")
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    return tmp_path


def test_it_prints_and_writes_what_the_function_finds(given, capsys):
    expected = inspect_model(patched("bert", "sum"), TEXTS, tokenizer())
    assert main(["inspect", "model", "--texts", "texts.txt", "--output-dir", "made"]) == 0
    assert str(expected) in capsys.readouterr().out
    assert sorted(path.name for path in given.iterdir()) == ["made", "model", "stock", "texts.txt"]
    written = json.loads((given / "made" / "inspection.json").read_text(encoding="utf-8"))
    moved = written["attention"]["moved"][WITHOUT_RELATIVE]
    np.testing.assert_allclose(moved, expected.attention.moved[WITHOUT_RELATIVE], rtol=1e-4)
    pictures = {path.stem for path in (given / "made").glob("*.png")}
    assert pictures == {path.stem for path in (given / "made").glob("*.svg")}
    assert pictures == {"use", "attention", "scores", "gates", "bias", "tables", "similarity_query", "similarity_value"}
    assert pictures <= set(SECTIONS)
    # The page is whole, and needs no other file.
    page = (given / "made" / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r'<img src="([^"]*)"', page)
    assert len(sources) == len(list((given / "made").glob("*.svg")))
    for source in sources:
        kind, _, content = source.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "RelPosBertForMaskedLM (was BertForMaskedLM)" in page


def test_json_is_all_that_is_printed(given, capsys):
    assert main(["inspect", "model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "RelPosBertForMaskedLM"
    assert "attention" not in found
    assert sorted(path.name for path in given.iterdir()) == ["model", "stock", "texts.txt"]


def test_every_axis_says_what_it_is_and_lines_are_told_apart_without_colours():
    figures = inspect_model(patched("t5", "sum"), TEXTS, tokenizer()).figures()
    assert set(figures) >= {"use", "attention", "scores", "gates", "bias", "tables"}
    for figure in figures.values():
        for axes in figure.axes:
            assert figure.get_supxlabel() or axes.get_xlabel() or axes.get_label() == "<colorbar>"
            assert figure.get_supylabel() or axes.get_ylabel() or axes.get_yticklabels()
    lines = figures["attention"].axes[0].lines[:3]
    assert len({line.get_linestyle() for line in lines}) == 3
    assert "tokens" in figures["attention"].get_supxlabel()
    assert "%" in figures["attention"].get_supylabel()


def test_lines_are_the_numbers_that_were_measured():
    inspection = inspect_model(patched("bert", "clipped"), TEXTS, tokenizer())
    figures = inspection.figures()
    for layer, axes in enumerate(figures["attention"].axes):
        for line, mass in zip(axes.lines, inspection.attention.mass.values(), strict=False):
            np.testing.assert_allclose(line.get_ydata(), 100 * mass[layer].mean(0))
            np.testing.assert_array_equal(line.get_xdata(), range(-6, 7))
    for layer, axes in enumerate(figures["scores"].axes[: tiny.LAYERS]):
        for head, line in enumerate(axes.lines[: tiny.HEADS]):
            np.testing.assert_allclose(line.get_ydata(), inspection.attention.added[layer, head])
    learned = inspection.learned
    for layer in range(tiny.LAYERS):
        for head in range(tiny.HEADS):
            drawn = figures["bias"].axes[layer].lines[head].get_ydata()
            np.testing.assert_allclose(drawn, learned.tables["bias"].values[layer, head] * learned.gates[layer, head])


@pytest.mark.parametrize(
    ("scheme", "drawn"),
    [
        ("alibi", {"tables", "bias"}),
        ("rotary", set()),
        ("key-query", {"tables", "similarity_query", "similarity_key"}),
    ],
)
def test_what_there_is_nothing_of_is_not_drawn(scheme, drawn):
    inspection = inspect_model(patched("gpt2", scheme, "drop", "none"), TEXTS, tokenizer())
    assert set(inspection.figures()) == {"attention", "scores", "use"} | drawn
    assert set(inspect_model(patched("gpt2", scheme, "drop", "none")).figures()) == drawn


def test_a_tokenizer_is_only_needed_to_read_texts(given, capsys):
    patched("bert").save_pretrained("bare")
    assert main(["inspect", "bare"]) == 0
    assert "give --texts" in capsys.readouterr().out
    assert main(["inspect", "bare", "--texts", "texts.txt"]) == 2
    assert "MODEL bare has no tokenizer that fits it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("nothing", "MODEL nothing cannot be loaded"),
        ("stock --output-dir made", "BertForMaskedLM is not patched. Patch it with"),
        ("model --texts nowhere.txt", "--texts nowhere.txt does not exist"),
        ("model --texts texts.txt --max-length 99 --output-dir made", "--max-length is 99, but must be"),
        ("model --output-dir stock", "--output-dir stock is there already, with files in it"),
    ],
    ids=["model", "stock", "texts", "length", "output"],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_written(options, said, given, capsys):
    before = sorted(given.rglob("*"))
    assert main(["inspect", *options.split()]) == 2
    assert said in capsys.readouterr().err
    assert sorted(given.rglob("*")) == before


def test_without_matplotlib_it_says_how_to_get_it_before_the_model_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert main(["inspect", "nothing", "--output-dir", str(tmp_path / "made")]) == 2
    assert (
        "needs the package matplotlib, which is not installed. Install what the demo needs" in capsys.readouterr().err
    )


def test_ctrl_c_while_drawing_leaves_no_folder(given, monkeypatch, capsys):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Inspection, "figures", stopped)
    assert main(["inspect", "model", "--output-dir", "made"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert sorted(path.name for path in given.iterdir()) == ["model", "stock", "texts.txt"]
