"""The recipes: each runs on toy texts, goes on where it was, and its page is what its kept results make."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import corpora, small_models  # noqa: E402
from benchmarks.parts import part, read_parts  # noqa: E402
from examples.recipes import classification, language_model, report, tagging  # noqa: E402
from examples.recipes.__main__ import main  # noqa: E402
from examples.recipes.comparisons import COMPARED, FOLDER  # noqa: E402
from examples.recipes.recipe import Recipe  # noqa: E402
from examples.recipes.spread import over_seeds  # noqa: E402
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
