"""docs/convert.md: its code and its command run as they stand, with a tiny model in place of the one on the Hub."""

from __future__ import annotations

import ast
import inspect
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
from hf_relpos.conversion.lengths import default_lengths

PAGE = (Path(__file__).parent.parent / "docs" / "convert.md").read_text(encoding="utf-8")
SETTINGS = inspect.signature(hf_relpos.convert).parameters  # as they are, before the fixture changes one
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


@pytest.mark.parametrize("name", ["steps", "batch_tokens", "learning_rates", "start", "target", "seed"])
def test_each_setting_is_on_the_page_with_its_default(name):
    (default,) = re.findall(rf"^\| `{name}` \| `(.*?)` \|", PAGE, re.MULTILINE)
    assert ast.literal_eval(default) == SETTINGS[name].default


def test_the_commands_help_has_the_same_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"and how many for everything ({' '.join(map(str, SETTINGS['steps'].default))})" in said
    assert f"tokens per step, about ({SETTINGS['batch_tokens'].default})" in said


def test_the_lengths_on_the_page_are_those_of_a_bert_and_a_gpt2():
    for reach, causal, said in ((512, False, "the lengths are"), (1024, True, "GPT-2's are")):
        *most, last = map(str, default_lengths(reach, causal))
        assert f"{said} {', '.join(most)} and {last}" in PAGE


def test_the_command_runs():
    (command,) = re.findall(r"```bash\nhf-relpos (.*?)```", PAGE, re.DOTALL)
    assert main(shlex.split(command)) == 0
    assert is_patched(AutoModel.from_pretrained("converted"))
