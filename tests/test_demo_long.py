"""`hf-relpos demo --long`: the whole run on a tiny model, and what it refuses. Its parts: test_benchmarks_long.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, BertTokenizerFast

import hf_relpos
from hf_relpos.cli import main
from hf_relpos.comparing.examples import Example, TextData

pytest.importorskip("matplotlib", reason="the demo draws with matplotlib, from the demo extra")

from hf_relpos.cli import data

WORDS = ["cat", "dog", "sun", "sea", "hill", "road", "bird", "tree"]
READERS = {
    "original, cut at 512",
    "windows of 512, mean",
    "positions repeated",
    "positions grouped",
    "positions interpolated",
    "converted, whole",
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny BERT of 512 positions and its tokenizer."""
    folder = tmp_path_factory.mktemp("pretrained")
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789'?"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *letters, *(f"##{one}" for one in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def news(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts, each of one sentence of its own again and again."""
    sentences = [" ".join(WORDS[(place + step) % 8] for place in range(9)) + "." for step in range(8)]
    examples = [Example(" ".join([sentence] * 80), number % 2) for number, sentence in enumerate(sentences)]
    monkeypatch.setattr(data, "embedded_model_folder", lambda: pretrained)
    monkeypatch.setattr(data, "load_bbc_news", lambda: TextData("news", ["odd", "even"], examples[:4], examples[4:]))


@pytest.mark.usefixtures("news")
def test_the_model_is_converted_kept_and_asked_with_the_other_readers(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = AutoModel.from_pretrained(pretrained).state_dict()
    assert main(["demo", "--long", "--quick", "--seed", "3", "--output-dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "reads_long.json").read_text(encoding="utf-8"))
    assert {name: {row["reader"] for row in rows} for name, rows in results["tasks"].items()} == {
        "find": READERS,
        "passkey": READERS,
        "label": READERS,
    }
    assert all(reader in said for reader in READERS)
    assert (results["seed"], results["fidelity"]["settings"]["seed"]) == (3, 3)
    assert results["versions"]["hf_relpos"] == hf_relpos.__version__
    assert (tmp_path / "out" / "reads_long.png").read_bytes().startswith(b"\x89PNG")
    converted = AutoModel.from_pretrained(tmp_path / "out" / "converted")
    assert hf_relpos.is_patched(converted)
    assert converted(torch.zeros(1, 700, dtype=torch.long)).last_hidden_state.shape == (1, 700, 16)
    assert "embedding" in (tmp_path / "out" / "converted" / "README.md").read_text(encoding="utf-8")
    after = AutoModel.from_pretrained(pretrained).state_dict()
    assert all(value.equal(after[name]) for name, value in before.items())


@pytest.mark.usefixtures("news")
def test_what_was_converted_is_kept_where_the_reading_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from hf_relpos.cli.long import demo

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "find", interrupt)
    assert main(["demo", "--long", "--quick", "--output-dir", str(tmp_path / "out")]) == 130
    assert f"Finished, and in {tmp_path / 'out'}: converted." in capsys.readouterr().err
    assert hf_relpos.is_patched(AutoModel.from_pretrained(tmp_path / "out" / "converted"))
    assert not (tmp_path / "out" / "reads_long.json").exists()


@pytest.mark.parametrize(
    "given", [["--scheme", "t5"], ["--native", "drop"], ["--model", "m", "--max-steps", "3"], ["--max-distance", "4"]]
)
def test_what_it_has_no_use_for_is_refused(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--long", *given, "--output-dir", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert all(option in said for option in given if option.startswith("--"))
    assert "hf-relpos convert --help" in said
    assert not (tmp_path / "out").exists()
