"""The pages of the site: their code runs, with tiny models in place of those on the Hub, and their lists are whole."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_pipelines import tokenizer

import hf_relpos
from hf_relpos import is_patched, nn
from hf_relpos.schemes import SCHEMES, AttentionGeometry

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture
def models_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.build("bert", cls="BertForPreTraining", max_position_embeddings=512).save_pretrained("bert-base-uncased")
    tiny.build("gpt2").save_pretrained("gpt2")
    tiny.build("t5").save_pretrained("t5-small")
    for name in ("bert-base-uncased", "gpt2"):
        tokenizer().save_pretrained(name)
    rows = [f"w{number} w3 w4,{number % 2}" for number in range(10)]
    Path("train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")


@pytest.mark.usefixtures("models_of_the_hub")
@pytest.mark.parametrize("name", ["index", "quickstart", "long-documents", "generation", "t5", "own-model"])
def test_every_python_block_runs_after_the_ones_before(name):
    names: dict[str, Any] = {"__name__": __name__}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page(name), re.DOTALL), start=1):
        exec(compile(block, f"block {number} of {name}", "exec"), names)
    made = [model for model in ("model", "tagger", "encoder") if model in names]
    assert made
    assert all(is_patched(names[model]) for model in made)


@pytest.mark.parametrize("translated", ["README.zh.md", "docs/quickstart.zh.md"])
def test_the_code_of_a_translation_is_that_of_the_page(translated):
    root = DOCS.parent
    code = [
        re.findall(r"```\w+\n.*?```", (root / name).read_text(encoding="utf-8"), re.DOTALL)
        for name in (translated, translated.replace(".zh", ""))
    ]
    assert code[0] == code[1] != []


@pytest.mark.usefixtures("models_of_the_hub")
def test_each_error_on_the_page_is_what_its_code_raises():
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page("faq"), re.DOTALL)
    names: dict[str, Any] = {}
    raised = 0
    for code, words in blocks:
        if not words:
            exec(compile(code, "docs/faq.md", "exec"), names)
            continue
        with pytest.raises((hf_relpos.RelPosError, ValueError)) as error:
            exec(compile(code, "docs/faq.md", "exec"), names)
        assert f"{error.type.__name__}: {error.value}".split() == words.split()
        raised += 1
    assert raised > 10


def test_the_schemes_on_their_page_are_those_registered_and_as_they_say_of_themselves():
    rows = []
    for name, config_class in SCHEMES.items():
        config = config_class()
        layer = config.build(AttentionGeometry(num_heads=12, head_dim=64, causal=False, num_layers=12))
        horizon = "none" if config.horizon is None else config.horizon
        exact = "yes" if config.starts_exact else "no"
        added = sum(parameter.numel() for parameter in layer.parameters())
        rows.append(f"| [`{name}`](#{name}) | {', '.join(sorted(config.parts))} | {horizon} | {exact} | {added:,} |")
    assert re.findall(r"^\| \[.*", page("schemes"), re.MULTILINE) == rows
    assert re.findall(r"^## (\w+)$", page("schemes"), re.MULTILINE) == list(SCHEMES)


def test_the_pictures_are_those_that_their_script_draws():
    pictures = runpy.run_path(str(DOCS / "pictures" / "draw.py"))["PICTURES"]
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert {name: str(draw()) for name, draw in pictures.items()} == kept


def test_every_public_name_is_in_the_reference():
    there = set(re.findall(r"^\.\. auto\w+:: (?:[\w.]+\.)?(\w+)$", page("reference"), re.MULTILINE))
    assert set(hf_relpos.__all__) - {"__version__"} <= there
    assert set(nn.__all__) <= there
