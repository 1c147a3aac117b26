"""Case 23: all checks before the first change, and whatever fails, the model is what it was, bit for bit."""

from __future__ import annotations

import copy
import functools
import gc
import linecache
import sys
from collections import Counter
from pathlib import Path

import pytest
import tiny
import torch
import transformers
from test_held_configs import composite
from tiny import assert_same, build, choices, fill, inputs, logits, patched

import hf_relpos
from hf_relpos import patch_model, unpatch_model
from hf_relpos.modeling import held_configs
from hf_relpos.training.annealing import drop_native_positions

PACKAGE = str(Path(hf_relpos.__file__).parent)


@pytest.fixture(autouse=True)
def _nothing_to_look_through():
    """Patching looks through all objects for what contains a model; those of the whole test run, hundreds of times."""
    gc.freeze()


class Injected(BaseException):
    """Not an Exception: nothing may catch it, as nothing may catch a keyboard interrupt."""


CHANGING = ("patching.py", "annealing.py", "wiring.py", "held_configs.py", "native.py", "tables.py", "transformers.py")


def lines_of(call):
    """Every line that a call runs, in order, of the files that change models."""
    seen = []

    def trace(frame, event, _):
        name = frame.f_code.co_filename
        if not (name.startswith(PACKAGE) and name.endswith(CHANGING)):
            return None
        if event == "line":
            seen.append((name, frame.f_lineno))
        return trace

    traced(trace, call)
    return seen


def traced(trace, call):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def fails_at(place, time, call):
    """Run a call, and raise when it comes to a line for the n-th time. Whether it came to that."""
    times = 0

    def trace(frame, event, _):
        nonlocal times
        if frame.f_code.co_filename != place[0]:
            return None
        if event == "line" and frame.f_lineno == place[1]:
            times += 1
            if times == time:
                raise Injected
        return trace

    try:
        traced(trace, call)
    except Injected:
        return True
    return False


def assert_unchanged_wherever_it_fails(make, call):
    """A failure at each line that a call runs, once when it comes to it first and once when it does last."""
    call(make())  # what is computed once in a process is not part of what is tried
    model = make()
    seen = Counter(lines_of(lambda: call(copy.deepcopy(model))))
    failures = 0
    for place, times in seen.items():
        for time in {1, times} if not is_out_of_hand(place) else ():
            attempt = copy.deepcopy(model)
            before, held = tiny.snapshot(attempt), configs_of(attempt)
            if fails_at(place, time, functools.partial(call, attempt)):
                assert_same(before, tiny.snapshot(attempt))
                assert configs_of(attempt) == held
                failures += 1
    assert failures > 50


def configs_of(model):
    return [id(module.config) for module in model.modules() if hasattr(module, "config")]


def is_out_of_hand(place):
    """The model is given back to the caller, all done; or PyTorch's device is: an interrupt there leaves it set."""
    return linecache.getline(*place).strip().startswith(("return model", "with torch.device("))


@pytest.mark.parametrize(("family", "native"), [("bert", "drop"), ("t5", "gate")])
def test_a_failure_at_any_step_of_patching_leaves_the_model_as_it_was(family, native):
    config = choices("sum", native, "head", share_layers=family == "t5", layers=[1])
    assert_unchanged_wherever_it_fails(lambda: build(family), lambda model: patch_model(model, config))


@pytest.mark.parametrize(("family", "native"), [("bert", "gate"), ("t5", "drop")])
def test_a_failure_at_any_step_of_unpatching_leaves_the_model_as_it_was(family, native):
    def make():
        return patched(family, "sum", native, share_layers=family == "t5")

    assert_unchanged_wherever_it_fails(make, unpatch_model)


def test_a_failure_at_any_step_of_dropping_later_leaves_the_model_as_it_was():
    assert_unchanged_wherever_it_fails(lambda: patched("bert"), drop_native_positions)


def test_an_encoder_decoder_does_not_follow_a_patch_that_failed():
    seen = Counter(lines_of(lambda: patch_model(composite().encoder, "shaw")))
    for place in [place for place in seen if place[0] == held_configs.__file__]:
        model = composite()
        config = model.config
        assert fails_at(place, seen[place], functools.partial(patch_model, model.encoder, "shaw"))
        assert model.config is config
        assert model.encoder.config is config.encoder
        assert type(config.encoder) is transformers.BertConfig


def test_advice_of_a_scheme_that_fails_comes_before_the_first_change(monkeypatch):
    def fails(self, trained_length):
        raise RuntimeError("no advice")

    monkeypatch.setattr(hf_relpos.Shaw, "advice", fails)
    model = build("bert")
    before = tiny.snapshot(model)
    with pytest.raises(RuntimeError, match="no advice"):
        patch_model(model, "shaw")
    assert_same(before, tiny.snapshot(model))


# No ordinary parameter in reach


@pytest.mark.core
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", ["bert", "t5", "umt5"])
def test_a_dynamically_quantised_model_is_patched_and_unpatched_exactly(family, native):
    quantised = torch.ao.quantization.quantize_dynamic(build(family), {torch.nn.Linear}, dtype=torch.qint8)
    attention = next(module for _, module in tiny.self_attentions(quantised))
    assert native == "keep" or family == "bert" or "relative_attention_bias" in attention._modules
    batch = inputs(family)
    expected = logits(quantised, batch)
    patch_model(quantised, choices("sum", native))
    if native != "drop":
        tiny.assert_close(logits(quantised, batch), expected, 1e-3)
    assert {parameter.dtype for parameter in tiny.added(quantised).values()} == {torch.float32}
    fill(quantised)
    assert tiny.differ(logits(quantised, batch), expected) > 1e-3
    assert torch.equal(logits(unpatch_model(quantised), batch), expected)


def test_a_module_without_any_parameter_takes_after_its_model():
    """Where no parameter is left in the attention, the norms and embeddings beside it say what to be like."""
    model = build("bert", dtype=torch.bfloat16)
    for _, attention in tiny.self_attentions(model):
        for name in ("query", "key", "value"):
            weights = getattr(attention, name)
            setattr(attention, name, torch.nn.Identity())
            attention.__dict__[f"quantised_{name}"] = copy.deepcopy(weights)
    patch_model(model, choices("sum"))
    assert {parameter.dtype for parameter in tiny.added(model).values()} == {torch.bfloat16}
