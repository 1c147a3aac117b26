"""The benchmarks run, and the page made from their results is the one that is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report, training_step  # noqa: E402


def test_the_performance_page_is_what_the_kept_results_make():
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == report.page()


def test_every_kept_result_says_on_what_it_was_measured():
    files = list((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    assert {path.stem for path in files} <= set(report.SECTIONS)
    for path in files:
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["date"]
        assert record["hardware"]["cpu"]
        assert record["versions"]["torch"]


@pytest.mark.parametrize("family", training_step.SCHEMES)
def test_a_training_step_is_compared_with_the_unpatched_model(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training_step, "TOKENS", 16)
    rows = training_step.measure(family, 8, seconds=0, engine="auto")
    assert [row["model"] for row in rows] == [training_step.UNPATCHED, *training_step.SCHEMES[family]]
    assert rows[0]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["rounds"] >= 3 and row["batch"] == 2 for row in rows)
