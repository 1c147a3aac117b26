"""What earlier releases have written (`tests/regression`) loads and computes what it computed then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fresh
import pytest
import safetensors.torch
import torch
import transformers
from regression.artefacts import (
    DTYPES,
    artefacts,
    batches_of,
    expected_of,
    group,
    load,
    logits,
    releases,
    trainer,
    written_with,
)

import hf_relpos
from hf_relpos import RelPosConfig
from hf_relpos.names import FORMER_ENGINES

ALL = artefacts()
SCRIPT = Path(__file__).parent / "without_package.py"

# Relative to the largest number there is. Another processor, or another BLAS library, adds up in another order, so that
# float32 outputs are bit-equal on the machine that wrote them only (`python -m tests.regression.write --check`).
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def assert_as_then(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert (actual[name] - tensor).abs().max() <= tolerance * tensor.abs().max(), name


def of_kind(*kinds):
    return pytest.mark.parametrize("artefact", [one for one in ALL if not kinds or one.kind in kinds], ids=str)


def is_of_this_transformers(artefact):
    return written_with(artefact.folder)["transformers"] == transformers.__version__


@pytest.mark.core
def test_every_release_has_every_kind():
    assert "0.1.0" in [folder.name for folder in releases()]
    for folder in releases():
        kinds = {one.kind for one in ALL if one.folder == folder}
        assert kinds == {"plain", "standalone", "adapter", "checkpoint", "pickle"}, folder.name


@pytest.mark.core
@of_kind("plain", "standalone", "adapter", "checkpoint")
def test_both_classes_load_every_parameter_and_every_choice(artefact):
    for cls in (getattr(transformers, artefact.auto_class), getattr(hf_relpos, artefact.model_class)):
        model, info = cls.from_pretrained(artefact.model_path, output_loading_info=True)
        assert not any(info.values()), info
        assert type(model) is getattr(hf_relpos, artefact.model_class)
        choices = RelPosConfig.of(model.config.relpos)
        for name in ("native", "gate", "window", "share_layers"):
            assert getattr(choices, name) == artefact.relpos[name], name
        then = artefact.relpos["engine"]
        assert choices.engine == ("auto" if then in FORMER_ENGINES else then)
        assert choices.layers == (artefact.relpos["layers"] and tuple(artefact.relpos["layers"]))
        for scheme, then in zip(choices.schemes, artefact.relpos["schemes"], strict=True):
            assert scheme.name == then["type"]
            assert {name: getattr(scheme, name) for name in then if name != "type"} | {"type": scheme.name} == then


@pytest.mark.core
@of_kind()
def test_outputs_are_those_of_then(artefact):
    if artefact.kind == "pickle" and not is_of_this_transformers(artefact):
        pytest.skip("Transformers' models change from release to release, so pickles of them are not portable")
    model = load(artefact)
    for dtype, tolerance in TOLERANCE.items():
        actual = logits(model, batches_of(artefact), dtype)
        assert_as_then(actual, expected_of(artefact, dtype), tolerance)


@pytest.mark.core
@of_kind("standalone")
def test_a_standalone_folder_still_runs_by_its_own_code(artefact, tmp_path):
    """In a process without the package: its sources of then meet the Transformers of today."""
    batches = batches_of(artefact)
    torch.save(list(batches.values()), tmp_path / "inputs.pt")
    tasks = {
        dtype: {
            "name": str(artefact.path),
            "auto_class": artefact.auto_class,
            "options": {"trust_remote_code": True, "dtype": dtype},
            "inputs": str(tmp_path / "inputs.pt"),
            "outputs": str(tmp_path / f"{dtype}.pt"),
        }
        for dtype in DTYPES
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(tasks)],
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(DTYPES, artefact.model_class)
    for dtype, tolerance in TOLERANCE.items():
        actual = dict(zip(batches, torch.load(tmp_path / f"{dtype}.pt"), strict=True))
        assert_as_then(actual, expected_of(artefact, dtype), tolerance)


@pytest.mark.core
@of_kind("checkpoint")
def test_training_goes_on_from_a_checkpoint_to_where_it_ended(artefact, tmp_path):
    model = load(artefact)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)  # the Trainer has to load them
    tensors = safetensors.torch.load_file(artefact.tensors_path)
    one = trainer(model, tensors["rows"], tmp_path, {**artefact.training, "save_strategy": "no"})
    assert one.train(resume_from_checkpoint=str(artefact.path)).global_step == artefact.training["max_steps"]
    assert_as_then(dict(sorted(model.named_parameters())), group(tensors, "after"), TOLERANCE["float32"])


def test_a_process_that_has_imported_nothing_can_read_the_pickles():
    pickles = [one for one in ALL if one.kind == "pickle" and is_of_this_transformers(one)]
    if not pickles:
        pytest.skip(f"no pickles of Transformers {transformers.__version__}")
    code = "import sys, torch; print(*(type(torch.load(path, weights_only=False)).__name__ for path in sys.argv[1:]))"
    said = fresh.run(code, *(str(one.path / "model.pt") for one in pickles))
    assert said.split() == [one.model_class for one in pickles]
