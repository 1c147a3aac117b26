"""The kernels for CUDA in Triton's interpreter, on the CPU: what they compute is what `eager` computes.

Triton decides when it is imported whether it interprets, so `test_cuda.py` runs this in a process of its own. By hand:
``TRITON_INTERPRET=1 pytest -n 0 tests/interpreted.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from cases import Case, make_case
from torch import Tensor

from hf_relpos.checkpoints import bundle
from hf_relpos.engines import eager, fused
from hf_relpos.engines.cuda import fused as cuda
from hf_relpos.engines.cuda.fused import largest_error
from hf_relpos.terms import RelativeTerms

# Three blocks and a bit: with the least horizon, as wide as a block, there are blocks in both tails.
LENGTH = 50


@pytest.fixture(autouse=True)
def as_if_this_were_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks as small as they may be."""
    monkeypatch.setattr(cuda, "BLOCK", 16)
    monkeypatch.setattr(cuda, "SMALL_BLOCK", 16)
    monkeypatch.setattr(cuda, "largest_error", lambda *kind: 0.0)
    monkeypatch.setitem(fused.HARDWARE, "cpu", cuda.ENGINE)


def assert_right(case: Case, dtype: torch.dtype = torch.float32, tolerance: float = 5e-6) -> None:
    """Output and all gradients are within the tolerance of those by `eager` in float64."""
    case = case.to(dtype)
    actual = case.actual("fused")
    reference.assert_all_close(actual, case.to(torch.float64).actual("eager"), tolerance)


def padding(keys: int) -> Tensor:
    """On the left, on the right, and a token in the midst; a whole block is hidden."""
    at = torch.arange(keys)
    return torch.stack([(at > 2) & (at != 40), at < keys - 20])


PROBLEMS: dict[str, dict[str, Any]] = {
    "bias": {"terms": ("bias",), "heads": 2},
    "bias, causal": {"terms": ("bias",), "rules": {"causal": True}},
    "bias for all heads in whole blocks": {"heads": 2, "terms": ("bias",), "k": 16, "shared": True, "queries": 48},
    "biases beyond the length": {"terms": ("bias", "native_bias"), "k": {"bias": 90, "native_bias": 3}},
    "bias, padding": {"terms": ("bias",), "batch": 2, "heads": 1, "rules": {"padding": padding(LENGTH)}},
    "bias, window": {"terms": ("bias",), "rules": {"window": 30}},
    "bias, causal window after cached keys": {
        "terms": ("bias",), "keys": 103, "query_offset": 53, "rules": {"causal": True, "window": 20},
    },
    "bias, more queries than keys": {"terms": ("bias",), "keys": 30},
    "bias, keys before the queries": {"terms": ("bias",), "queries": 20, "keys": 33, "query_offset": 90},
    "bias, causal, queries before keys": {"terms": ("bias",), "query_offset": -21, "rules": {"causal": True}},
    "gated bias": {"terms": ("bias", "gate")},
    "gate beside a native bias": {
        "terms": ("native_bias", "value", "gate"), "gate_batch": 1, "batch": 2, "heads": 1, "queries": 40,
    },
    "vectors": {"terms": ("query", "value"), "k": {"query": 5, "value": 20}, "heads": 2},
    "vectors, causal, grouped keys": {
        "terms": ("query", "value"), "heads": 2, "key_heads": 1, "rules": {"causal": True},
    },
    "vectors in whole blocks": {"terms": ("query", "value"), "queries": 48, "k": 16, "shared": True},
    "vectors, padding in a causal window": {
        "terms": ("query", "value"), "batch": 2, "keys": 60, "query_offset": 10,
        "rules": {"padding": padding(60), "causal": True, "window": 35},
    },
    "vectors, window": {"terms": ("query", "value"), "rules": {"window": 40}},
    "vectors, one query": {"terms": ("query", "value"), "queries": 1, "keys": 60, "query_offset": 31},
    "vectors, keys after the queries": {"terms": ("query", "value"), "queries": 20, "keys": 40, "query_offset": -60},
    "vectors of the value alone, of another size": {"terms": ("value",), "dim": 20, "value_dim": 7},
    "all": {
        "terms": ("bias", "query", "value", "gate", "native_bias"), "batch": 2, "heads": 2, "queries": 23, "keys": 60,
    },
    "window out of sight": {"terms": ("bias", "value"), "queries": 20, "query_offset": 70, "rules": {"window": 1}},
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_output_and_gradients_are_those_of_eager(problem: str):
    options = {"batch": 1, "heads": 1, "queries": LENGTH, "dim": 16, "value_dim": 16, **PROBLEMS[problem]}
    assert_right(make_case(**options))


def test_half_precision_is_read_as_it_is_and_summed_in_float32():
    """Twice the error of rounding the inputs' products; bfloat16 is nothing that the interpreter multiplies rightly."""
    case = make_case(("query", "value"), batch=1, heads=2, queries=40, dim=16, value_dim=16)
    assert_right(case, torch.float16, 4e-3)


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scales_that_turn_maxima_into_something_else(scale: float):
    assert_right(make_case(("bias",), batch=1, heads=1, queries=40, dim=16, value_dim=16, scale=scale))


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_that_of_the_weights_left_in_every_pass(causal: bool):
    """With the identity as values the output is the weights that are left, times a factor."""
    rules = {"causal": causal}
    case = make_case(("query", "value"), batch=1, heads=1, queries=36, dim=16, value_dim=36, rules=rules).to(
        torch.float32
    )
    probe = {**case.tensors, "v": torch.eye(36).expand(1, 1, 36, 36), "value": torch.zeros(1, 1, 36)}
    dropout, states = 0.25, torch.get_rng_state()

    def dropped(tensors: dict[str, Tensor]) -> Tensor:
        torch.set_rng_state(states)
        return case.by("fused", tensors, dropout)

    left, all_of_them = dropped(probe), case.by("eager", probe)
    keep = torch.where(left > 0, 1 / (1 - dropout), 0.0)
    torch.testing.assert_close(left, all_of_them * keep, atol=1e-6, rtol=1e-5)
    share = (left > 0).sum() / (all_of_them > 0).sum()
    assert 0.7 < share < 0.8
    expected = reference.output_and_gradients(lambda tensors: case.by_reference(tensors, keep), case.tensors)
    reference.assert_all_close(reference.output_and_gradients(dropped, case.tensors), expected, 5e-6)
    torch.set_rng_state(states)
    assert not torch.equal(case.by("fused", probe, dropout), case.by("fused", probe, dropout))


def test_padding_that_is_not_finite_reaches_no_output_and_no_gradient():
    case = make_case(("query", "value"), batch=2, heads=1, queries=22, dim=16, value_dim=16).to(torch.float32)
    seen = padding(22)
    case.rules["padding"] = seen
    expected = case.actual("fused")
    broken = {name: case.tensors[name].masked_fill(~seen[:, None, :, None], float("nan")) for name in "kv"}
    terms, mask = case.terms(case.tensors), case.mask(case.tensors)
    states = [tensor.requires_grad_() for tensor in (case.tensors["q"], broken["k"], broken["v"])]
    output = fused.attend(*states, terms, mask, scale=case.scale)[0]
    assert torch.equal(output, expected["output"])
    for gradient in torch.autograd.grad(output.sum(), states):
        assert gradient.isfinite().all()


def test_scores_of_hundreds_overflow_nothing():
    case = make_case(("bias",), batch=1, heads=1, queries=36, dim=16, value_dim=16)
    case.tensors["bias"] = torch.linspace(-300, 300, 7, dtype=torch.float64)[None]
    assert_right(case, tolerance=1e-4)


def test_any_strides_will_do_and_runs_are_bit_equal():
    case = make_case(("bias",), batch=1, heads=2, queries=24, dim=16, value_dim=16).to(torch.float32)
    first = case.actual("fused")
    case.tensors.update({name: case.tensors[name].transpose(-1, -2).contiguous().transpose(-1, -2) for name in "qkv"})
    second = case.actual("fused")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradients_are_computed_for_what_learns_only():
    """A bias that is fixed has none, and its sums over diagonals are left out."""
    case = make_case(("bias",), batch=1, heads=1, queries=24, dim=16, value_dim=16).to(torch.float32)
    states = [case.tensors[name].clone().requires_grad_() for name in "qkv"]
    terms = RelativeTerms(bias=case.tensors["bias"])
    results = [
        torch.autograd.grad(
            engine.attend(*states, terms, case.mask(case.tensors), scale=case.scale)[0].square().sum(), states
        )
        for engine in (fused, eager)
    ]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_compiled_code_holds_the_operators_in_one_graph():
    case = make_case(("query", "value"), batch=1, heads=1, queries=20, dim=16, value_dim=16).to(torch.float32)
    compiled = torch.compile(lambda tensors: case.by("fused", tensors), backend="aot_eager", fullgraph=True)
    actual = reference.output_and_gradients(compiled, case.tensors)
    reference.assert_all_close(actual, case.actual("fused"), 1e-6)


def test_second_and_batched_derivatives_are_refused_with_the_engine_that_has_them():
    case = make_case(("bias",), batch=1, heads=1, queries=3, dim=16, value_dim=16).to(torch.float32)
    tensors = {name: tensor.requires_grad_() for name, tensor in case.tensors.items()}
    output = case.by("fused", tensors)
    cotangents = torch.stack([torch.ones_like(output)] * 2)
    with pytest.raises(NotImplementedError, match=r"batched gradients .* engine='eager'"):
        torch.autograd.grad(output, tensors["q"], cotangents, is_grads_batched=True, retain_graph=True)
    (gradient,) = torch.autograd.grad(output.sum(), tensors["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"second derivatives.* engine='eager'"):
        gradient.sum().backward()


def test_the_code_of_a_standalone_folder_has_kernels_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its files are flat, and its operators have names of their own."""
    (tmp_path / "folder").mkdir()
    for name, text in bundle.bundled_files().items():
        (tmp_path / "folder" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    carried = importlib.import_module("folder.relpos_engines_fused").HARDWARE["cuda"].attend
    case = make_case(("query", "value"), batch=1, heads=1, queries=9, dim=16, value_dim=16).to(torch.float32)

    def by(tensors: dict[str, Tensor]) -> Tensor:
        return carried(
            tensors["q"], tensors["k"], tensors["v"], case.terms(tensors), case.mask(tensors), scale=case.scale
        )[0]  # fmt: skip

    actual = reference.output_and_gradients(by, case.tensors)
    reference.assert_all_close(actual, case.to(torch.float64).actual("eager"), 5e-6)


KIND = (torch.device("cpu"), torch.float32, 16, 16, ("query", "value"), False, True)


def test_the_self_check_finds_no_fault_in_kernels_that_are_right():
    assert largest_error(*KIND) < 5e-6


def test_the_self_check_finds_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda, "LOG2_E", 1.0)
    assert largest_error(*KIND) > 100 * cuda.TOLERANCES[torch.float32]
