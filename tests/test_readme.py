"""The README's code runs, from the first block to the last, with a tiny model in place of the one on the Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tiny

import hf_relpos
from hf_relpos import patch_report

README = Path(__file__).parent.parent / "README.md"


def test_every_python_block_runs_after_the_ones_before(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny.build("bert", cls="BertForPreTraining").save_pretrained("bert-base-uncased")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    optimized = None
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"block {number} of the README", "exec"), names)
        if number == 1:
            assert patch_report(names["model"]).config == hf_relpos.RelPosConfig("shaw")
        if "optimizer" in names and optimized is None:
            optimized = {id(parameter) for group in names["optimizer"].param_groups for parameter in group["params"]}
            assert optimized == {id(parameter) for parameter in names["model"].parameters()}
            assert patch_report(names["model"]).config.native == "gate"
    assert "max_distance=16" in capsys.readouterr().out  # the report that is printed
    assert optimized
    assert type(names["model"]) is hf_relpos.RelPosBertForMaskedLM


def test_the_accuracy_it_names_is_that_of_the_demos_card():
    root = README.parent
    card = (root / "model_cards" / "relpos-demo.md").read_text(encoding="utf-8")
    patched, unpatched = re.findall(r"^\| accuracy \| ([\d.]+) \| ([\d.]+) \|$", card, re.MULTILINE)[0]
    assert patched == unpatched
    for name, words in (("README.md", "accuracy"), ("README.zh.md", "准确率")):
        (named,) = re.findall(rf"{words} ([\d.]+)", (root / name).read_text(encoding="utf-8"))
        assert named == f"{float(patched):.3f}"
