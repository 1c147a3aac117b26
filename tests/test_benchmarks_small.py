"""The small models of the benchmark: they learn, are measured on what they have not seen, and are compared as said."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import conversion_memory, convert_small, corpora, long_report, parts, small_models  # noqa: E402

TEXTS = [f"the cat sat on the mat and the {animal} ran far away from home" for animal in ("dog", "cow", "hen", "pig")]


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "VOCABULARY", 300)
    monkeypatch.setattr(small_models, "POSITIONS", 16)
    monkeypatch.setattr(small_models, "SHORT", 4)
    monkeypatch.setattr(small_models, "BATCH", 64)


@pytest.mark.usefixtures("smaller")
def test_the_tokenizer_writes_what_it_reads_and_a_stream_ends_each_text():
    tokenizer = small_models.tokenizer_of(TEXTS)
    assert 290 < len(tokenizer) <= 300
    tokens = small_models.stream(["a cat", "é dog"], tokenizer)
    assert (tokens == tokenizer.eos_token_id).nonzero().flatten().tolist()[-1] == len(tokens) - 1
    assert tokenizer.decode(tokens).replace(" ", "") == "acat<end>édog<end>"
    assert tokenizer.mask_token_id not in (None, tokenizer.pad_token_id)


@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_small_model_learns_the_same_each_time(family: str):
    tokenizer = small_models.tokenizer_of(TEXTS)
    tokens = small_models.stream(TEXTS * 10, tokenizer)
    made = {}
    for run in (0, 1):
        make = small_models.predict if family == "gpt2" else small_models.Hide(tokenizer.mask_token_id)
        model = small_models.small_gpt2() if family == "gpt2" else small_models.small_t5()
        windows = small_models.windows_of(tokens, 16)[:4]
        before = small_models.loss_over(model, windows, make)
        small_models.train(model, tokens, make, steps=8)
        after = small_models.loss_over(model, windows, make)
        assert not model.training
        assert after < before - 0.5
        made[run] = after
    assert made[0] == made[1]


@pytest.mark.usefixtures("smaller")
def test_training_reads_short_windows_at_all_positions_and_then_whole_ones():
    tokens = torch.arange(100) % 250
    read: list[torch.Tensor] = []
    places: list[torch.Tensor] = []

    def noted(windows: torch.Tensor, first: torch.Tensor) -> dict[str, torch.Tensor]:
        read.append(windows)
        places.append(first)
        return small_models.predict(windows, first)

    small_models.train(small_models.small_gpt2(), tokens, noted, steps=4)
    assert [tuple(windows.shape) for windows in read] == [(16, 4), (16, 4), (4, 16), (4, 16)]
    assert {int(first) for first in torch.cat(places[:2])} > set(range(2, 10))
    assert torch.cat(places[2:]).eq(0).all()
    windows = torch.tensor([[5, 6, 7]])
    assert small_models.predict(windows, torch.tensor([3]))["position_ids"].tolist() == [[3, 4, 5]]
    assert "position_ids" not in small_models.predict(windows)


def test_hidden_tokens_are_hidden_from_the_source_alone_and_others_each_time():
    hide = small_models.Hide(1)
    windows = torch.arange(2, 2002).view(10, 200)
    first, second = hide(windows), hide(windows)
    for batch in (first, second):
        assert batch["labels"].equal(windows)
        away = batch["input_ids"] != windows
        assert (batch["input_ids"][away] == 1).all()
        assert 0.1 < away.double().mean() < 0.2
    assert not first["input_ids"].equal(second["input_ids"])
    assert small_models.Hide(1)(windows)["input_ids"].equal(first["input_ids"])


@pytest.mark.usefixtures("smaller")
def test_the_loss_is_the_mean_over_all_windows_whatever_the_batches():
    model = small_models.small_gpt2().eval()
    tokens = torch.arange(2, 98)
    windows = small_models.windows_of(tokens, 16)
    assert windows.flatten().equal(tokens)
    assert small_models.windows_of(tokens, 40).shape == (2, 40)
    with torch.inference_mode():
        scores = model(windows).logits.log_softmax(-1)
    expected = -scores[:, :-1].gather(2, windows[:, 1:, None]).mean().item()
    # Six windows in batches of four.
    assert small_models.loss_over(model, windows, small_models.predict) == pytest.approx(expected, rel=1e-5)


def test_held_out_texts_are_none_that_was_learned_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpora, "bbc_articles", lambda: ([("a", "x"), ("b", "x")], [("b", "x"), ("c", "y")]))
    assert corpora.bbc_texts() == (["a", "b"], ["c"])


def gpt2_of(original: float, at_256: float, at_1024: float) -> parts.Part:
    rows = [{"model": convert_small.ORIGINAL, "256": original},
            {"model": convert_small.DROPPED, "256": 900.0, "512": 900.0, "1024": 900.0},
            {"model": convert_small.CONVERTED, "256": at_256, "512": at_256, "1024": at_1024}]  # fmt: skip
    return parts.part({"what": "gpt2"}, rows)


def t5_of(original: float, converted: float) -> parts.Part:
    names = (convert_small.ORIGINAL, convert_small.DROPPED, convert_small.CONVERTED)
    rows = [{"model": name, "loss": loss} for name, loss in zip(names, (original, 9.0, converted), strict=True)]
    return parts.part({"what": "t5"}, rows)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (gpt2_of(100.0, 101.9, 101.0), []),
        (gpt2_of(100.0, 102.1, 101.0), ["perplexity at 256"]),
        (gpt2_of(100.0, 100.0, 100.1), ["perplexity at 1024"]),
        (t5_of(5.0, 5.09), []),
        (t5_of(5.0, 5.11), ["T5's loss"]),
    ],
)
def test_what_does_not_hold_of_small_models_is_said(made: parts.Part, said: list[str]):
    missed = convert_small.misses(made)
    assert len(missed) == len(said)
    assert all(words in line for words, line in zip(said, missed, strict=True))


def test_the_page_shows_small_models(tmp_path: Path):
    parts.write_parts("convert_small", [gpt2_of(100.0, 103.0, 99.0), t5_of(5.0, 5.0)], tmp_path)
    page = long_report.page(tmp_path)
    assert "| GPT-2, 300 + 4,000 steps; perplexity at | 256 | 512 | 1,024 |" in page
    assert "| original | 100.000 |  |  |" in page
    assert "- GPT-2's perplexity at 256 is 103.000, more than 102.000" in page
    assert page.count("Not reached:") == 1


@pytest.mark.usefixtures("smaller")
def test_small_models_are_compared_with_their_copies_before_and_after_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(convert_small, "POSITIONS", 16)
    monkeypatch.setattr(convert_small, "LENGTHS", (16, 32))
    monkeypatch.setattr(convert_small, "bbc_texts", lambda: (TEXTS * 4, TEXTS))
    monkeypatch.setattr(convert_small, "misses", lambda made: [])
    monkeypatch.setattr(convert_small, "TRAINING_STEPS", 2)
    monkeypatch.setattr(convert_small, "STEPS", {"gpt2": (1, 1), "t5": (1, 1)})
    assert convert_small.main(["--output-dir", str(tmp_path)]) == 0
    gpt2, t5 = parts.read_parts("convert_small", tmp_path)
    assert [list(row) for row in gpt2["results"]] == [["model", "16"], ["model", "16", "32"], ["model", "16", "32"]]
    assert len({row["16"] for row in gpt2["results"]}) == 3
    assert [row["model"] for row in t5["results"]] == [convert_small.ORIGINAL, convert_small.DROPPED,
                                                      convert_small.CONVERTED]  # fmt: skip
    assert all(math.isfinite(row["loss"]) for row in t5["results"])
    assert gpt2["relpos"]["native"] == "drop"
    assert "gpt2" in capsys.readouterr().out


@pytest.mark.parametrize(("taken", "status"), [(249.0, 0), (251.0, 1)])
def test_memory_of_a_conversion_is_held_against_that_of_fine_tuning(taken, status, tmp_path, monkeypatch, capsys):
    peaks = {"fine-tuning": 100.0, "conversion": taken}
    monkeypatch.setattr(conversion_memory, "in_fresh_process", lambda module, task, env: peaks[task["what"]])
    assert conversion_memory.main(["--threads", "1", "--output-dir", str(tmp_path)]) == status
    (made,) = parts.read_parts("conversion_memory", tmp_path)
    assert [row["peak_mib"] for row in made["results"]] == [100, taken]
    assert ("DOES NOT HOLD" in capsys.readouterr().out) == bool(status)
