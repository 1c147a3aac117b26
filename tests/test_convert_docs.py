"""docs/convert.md: its code and its command run as they stand, with a tiny model in place of the one on the Hub."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tiny
from test_convert import texts
from test_pipelines import tokenizer
from transformers import AutoModel

import hf_relpos
from hf_relpos import is_patched
from hf_relpos.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "convert.md").read_text(encoding="utf-8")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def few_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.build("bert", cls="BertModel").save_pretrained(MODEL)
    tokenizer(model_max_length=tiny.POSITIONS).save_pretrained(MODEL)
    (tmp_path / "texts.txt").write_text("\n\n".join(texts()), encoding="utf-8")
    monkeypatch.setitem(hf_relpos.convert.__kwdefaults__, "steps", (1, 1))


def test_the_code_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/convert.md", "exec"), {})
    assert is_patched(AutoModel.from_pretrained("converted"))
    assert "embedding" in capsys.readouterr().out


def test_the_command_runs():
    (command,) = re.findall(r"```bash\nhf-relpos (.*?)```", PAGE, re.DOTALL)
    assert main(shlex.split(command)) == 0
    assert is_patched(AutoModel.from_pretrained("converted"))
