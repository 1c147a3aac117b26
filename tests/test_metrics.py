"""The local metrics agree with hand-computed values and with scikit-learn, and need no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_relpos.metrics import METRICS, load_metric, metric_path

sklearn_metrics = pytest.importorskip("sklearn.metrics")

# three classes: 4 of 6 right. Per class (precision, recall): 0 (2/3, 1), 1 (1, 1/3), 2 (1/2, 1)
PREDICTIONS = [0, 0, 0, 1, 2, 2]
REFERENCES = [0, 0, 1, 1, 1, 2]
F1_PER_CLASS = [0.8, 0.5, 2 / 3]


def test_accuracy_equals_the_hand_computed_value():
    metric = load_metric("accuracy")
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES) == {"accuracy": 4 / 6}
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES, normalize=False) == {"accuracy": 4.0}


def test_accuracy_weights_each_prediction():
    result = load_metric("accuracy").compute(predictions=[0, 1], references=[0, 0], sample_weight=[3.0, 1.0])
    assert result == {"accuracy": 0.75}


def test_f1_equals_the_hand_computed_values():
    metric = load_metric("f1")
    per_class = metric.compute(predictions=PREDICTIONS, references=REFERENCES, average=None)["f1"]
    assert per_class == pytest.approx(F1_PER_CLASS)
    macro = metric.compute(predictions=PREDICTIONS, references=REFERENCES, average="macro")["f1"]
    assert macro == pytest.approx(sum(F1_PER_CLASS) / 3)
    binary = metric.compute(predictions=[1, 1, 0], references=[1, 0, 0])["f1"]
    assert binary == pytest.approx(2 / 3)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
def test_f1_agrees_with_scikit_learn(average):
    expected = sklearn_metrics.f1_score(REFERENCES, PREDICTIONS, average=average)
    result = load_metric("f1").compute(predictions=PREDICTIONS, references=REFERENCES, average=average)
    assert result["f1"] == pytest.approx(expected, abs=1e-12)


def test_a_class_that_never_occurs_counts_as_zero_without_a_warning(recwarn):
    result = load_metric("f1").compute(predictions=[0, 0], references=[0, 0], average="macro", labels=[0, 1])
    assert result == {"f1": 0.5}
    assert not [warning for warning in recwarn if "ill-defined" in str(warning.message)]


def test_metrics_can_be_fed_in_batches():
    metric = load_metric("accuracy")
    metric.add_batch(predictions=[0, 1], references=[0, 0])
    metric.add_batch(predictions=[1, 1], references=[1, 1])
    assert metric.compute() == {"accuracy": 0.75}


@pytest.mark.parametrize("load", [load_metric, metric_path])
def test_an_unknown_metric_is_refused_with_the_list_of_known_ones(load):
    with pytest.raises(ValueError, match=r"'bleu'.*accuracy, f1"):
        load("bleu")


def test_a_missing_dependency_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    monkeypatch.delitem(sys.modules, "hf_relpos.metrics.f1.f1", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'sklearn.*pip install "\.\[demo\]"'):
        load_metric("f1")


def test_evaluate_loads_the_local_modules_and_writes_only_below_hf_home(tmp_path):
    folders = {name: Path(metric_path(name)) for name in METRICS}
    before = {name: sorted(folder.rglob("*.py")) for name, folder in folders.items()}
    code = (
        "import sys, evaluate\n"
        "for path in sys.argv[1:]:\n"
        "    print(evaluate.load(path).compute(predictions=[1, 0], references=[1, 0]))\n"
    )
    home = tmp_path / "hf"
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    for variable in ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE"):
        env.pop(variable, None)
    command = [sys.executable, "-P", "-c", code, *map(str, folders.values())]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str({name: 1.0}) for name in METRICS]
    for name, folder in folders.items():
        assert list(home.rglob(f"{name}.py")), "the script was not copied below HF_HOME"
        assert sorted(folder.rglob("*.py")) == before[name]


def test_load_metric_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    load_metric("f1").compute(predictions=[1, 0], references=[1, 0])
    assert list(tmp_path.iterdir()) == []
