"""benchmarks/conversion.py: what it measures, and what it says does not hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny
from test_convert import texts
from test_pipelines import tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import conversion, parts


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A tiny model and its texts in the place of MiniLM and the news."""
    tiny.build("bert", cls="BertModel", max_position_embeddings=64).save_pretrained(tmp_path / "model")
    tokenizer(model_max_length=64).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(conversion, "minilm", lambda: tmp_path / "model")
    monkeypatch.setattr(conversion, "bbc_texts", lambda: (texts(), texts(5, seed=1)))
    monkeypatch.setattr(conversion, "LEAST", {8: 0.5, 32: 1.1})
    return tmp_path


def test_it_measures_what_it_converted_and_says_what_does_not_hold(small):
    made, converted, _ = conversion.measured(1, steps=(1, 1), lengths=(8, 32), batch_tokens=64, progress=False)
    assert [row["length"] for row in made["results"]] == [8, 32]
    assert all(0 < row["least"] <= row["cosine"] <= 1 for row in made["results"])
    assert made["articles"] == 5
    assert made["fidelity"]["rows"][-1]["stage"] == "all"
    assert converted.config.relpos["schemes"][0]["type"] == "clipped"
    made["of"] = {"what": "MiniLM"}
    (said,) = conversion.misses(made)
    assert said == f"cosine at 32 is {made['results'][1]['cosine']:.4f}, less than 1.1"
    assert conversion.misses({**made, "minutes": 16})[-1] == "it took 16 minutes, more than 15"


def test_other_choices_are_a_part_by_themselves_of_which_nothing_is_asked(small, monkeypatch):
    own = conversion.measured
    monkeypatch.setattr(conversion, "measured", lambda *args, **given: own(*args, lengths=(8, 32), **given))
    choices = ["--steps", "1", "2", "--schemes", "t5", "shaw:4"]
    assert conversion.main([*choices, "--threads", "1", "--output-dir", str(small)]) == 0
    (made,) = parts.read_parts("conversion", small)
    assert made["of"] == {"what": "MiniLM", "schemes": ["t5", "shaw:4"], "steps": [1, 2]}
    assert [one["type"] for one in made["fidelity"]["settings"]["relpos"]["schemes"]] == ["t5", "shaw"]
    assert conversion.misses(made) == []
    assert conversion.tokens_read(made) == 3 * 256
