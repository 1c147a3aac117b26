"""docs/commands.md: its commands and its code run as they stand, one after the other, with tiny models."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tiny
from test_pipelines import tokenizer

import hf_relpos
from hf_relpos.cli import (
    build_parser,
    compare_options,
    convert_options,
    inspect_options,
    main,
    patch_options,
    recommend_options,
    sweep_options,
)

OPTIONS = (compare_options, convert_options, inspect_options, patch_options, recommend_options, sweep_options)

PAGE = (Path(__file__).parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")


def test_every_block_runs_after_the_ones_before(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="plots are drawn with matplotlib, from the demo extra")
    monkeypatch.chdir(tmp_path)
    tiny.build("bert").save_pretrained("bert-base-uncased")
    tokenizer().save_pretrained("bert-base-uncased")
    Path("rows.csv").write_text("text,label\n" + "w1 w2,up\nw2 w1,down\n" * 8, encoding="utf-8")
    Path("texts.txt").write_text("w1 w2 w3 w4\n\nw5 w6 w7", encoding="utf-8")
    model, names = tiny.patched("bert"), {"hf_relpos": hf_relpos, "tokenizer": tokenizer()}
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"bash", "python"}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "docs/commands.md", "exec"), {**names, "model": model})
        else:
            for line in block.splitlines():
                assert main(shlex.split(line.removeprefix("hf-relpos "))) == 0, line
    for folder in ("inspected", "compared", "compared-too"):
        assert (tmp_path / folder / "index.html").exists()


def test_every_command_is_on_the_page():
    commands = re.findall(r"^    (\w+)(?: |$)", build_parser().format_help(), re.MULTILINE)
    assert set(re.findall(r"^\| `hf-relpos (\w+)`", PAGE, re.MULTILINE)) == set(commands)
    assert len(commands) > 3


@pytest.mark.parametrize("options", OPTIONS)
def test_the_examples_of_a_commands_help_are_commands_that_it_takes(options):
    given = re.findall(r"^  hf-relpos (.*?)(?:  +\(.*| > .*)?$", options.EXAMPLES, re.MULTILINE)
    assert given
    for words in given:
        build_parser().parse_args(shlex.split(words))
