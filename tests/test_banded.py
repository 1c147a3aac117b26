"""The banded engine against the pair-by-pair reference; what it refuses; and what happens if PyTorch changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_relpos.engines import REFUSES, attend, banded, choose
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

SCALE = 0.37
COMBINATIONS = [
    ("bias",),
    ("query",),
    ("value",),
    ("query", "value"),
    ("query", "value", "gate"),
    ("bias", "native_bias", "gate"),
    ("bias", "query", "value", "gate", "native_bias"),
]
PADDING = torch.tensor([[True] * 12 + [False] * 11, [False] * 9 + [True] * 14])


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four queries, and one sequence at a time."""
    monkeypatch.setattr(banded, "LEAST_BLOCK", 4)
    monkeypatch.setattr(banded, "WINDOW_NUMBERS", 1)


small_blocks = pytest.mark.usefixtures("_small_blocks")


def make(
    terms: tuple[str, ...],
    *,
    queries: int = 23,
    keys: int = 23,
    k: int = 3,
    batch: int = 2,
    key_heads: int = 4,
    heads: int = 4,
    shared: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Random tensors by name; every table has another horizon, from ``k`` on."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    tensors = {
        "q": normal(batch, heads, queries, 5),
        "k": normal(batch, key_heads, keys, 5),
        "v": normal(batch, key_heads, keys, 5),
    }
    for more, name in enumerate(terms):
        rows = 2 * (k + more) + 1
        table_heads = 1 if shared else heads
        if name == "gate":
            tensors[name] = normal(batch, heads, queries)
        elif name.endswith("bias"):
            tensors[name] = normal(table_heads, rows)
        else:
            tensors[name] = normal(table_heads, rows, 5)
    return tensors


def terms_of(tensors: dict[str, Tensor]) -> RelativeTerms:
    return RelativeTerms(**{name: tensor for name, tensor in tensors.items() if name not in ("q", "k", "v")})


def by_banded(tensors: dict[str, Tensor], offset: int = 0, **rules: Any) -> Tensor:
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], query_offset=offset, **rules)
    return attend(
        tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), mask, scale=SCALE, engine="banded"
    )[0]  # fmt: skip


def by_reference(tensors: dict[str, Tensor], offset: int = 0, **rules: Any) -> Tensor:
    (batch, heads, queries, _), keys = tensors["q"].shape, tensors["k"].shape[2]
    allowed = reference.allowed_pairs(batch, heads, queries, keys, query_offset=offset, **rules)
    return reference.attention(
        tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), scale=SCALE, query_offset=offset, allowed=allowed
    )[0]  # fmt: skip


def assert_equal(tensors: dict[str, Tensor], tolerance: float = 1e-10, **rules: Any) -> None:
    actual = reference.output_and_gradients(partial(by_banded, **rules), tensors)
    expected = reference.output_and_gradients(partial(by_reference, **rules), tensors)
    reference.assert_all_close(actual, expected, tolerance)


@small_blocks
@pytest.mark.core
@pytest.mark.parametrize("padding", [None, PADDING], ids=["no padding", "padding"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("terms", COMBINATIONS, ids=" ".join)
def test_output_and_gradients_equal_the_reference(terms: tuple[str, ...], causal: bool, padding: Tensor | None):
    assert_equal(make(terms), causal=causal, padding=padding)


@small_blocks
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("shape", [
    {"queries": 1, "keys": 1},
    {"queries": 5, "keys": 5, "k": 9},
    {"queries": 4, "keys": 4, "k": 1},
    {"queries": 17, "keys": 17, "k": 1},
    {"queries": 9, "keys": 30, "offset": 13},
    {"queries": 9, "keys": 30, "offset": 0},
    {"queries": 1, "keys": 30, "offset": 29},
    {"heads": 6, "key_heads": 2},
    {"shared": True},
    {"batch": 1},
], ids=str)  # fmt: skip
def test_odd_shapes_equal_the_reference(shape: dict[str, Any], causal: bool):
    offset = shape.get("offset", 0)
    shape = {name: value for name, value in shape.items() if name != "offset"}
    assert_equal(make(COMBINATIONS[-1], **shape), causal=causal, offset=offset)


@small_blocks
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_cases_equal_the_reference(data: st.DataObject):
    queries = data.draw(st.integers(1, 20))
    offset = data.draw(st.integers(0, 8))
    keys = queries + offset + data.draw(st.integers(0, 6))
    batch = data.draw(st.integers(1, 3))
    rules: dict[str, Any] = {"causal": data.draw(st.booleans()), "offset": offset}
    if data.draw(st.booleans()):
        tokens = data.draw(st.lists(st.booleans(), min_size=batch * keys, max_size=batch * keys))
        rules["padding"] = torch.tensor(tokens).view(batch, keys)
    terms = data.draw(st.sampled_from(COMBINATIONS))
    k, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 2**16))
    assert_equal(make(terms, queries=queries, keys=keys, batch=batch, k=k, seed=seed), **rules)


@pytest.mark.parametrize("causal", [False, True])
def test_its_own_block_sizes_equal_the_reference_in_float32(causal: bool):
    tensors = make(COMBINATIONS[4], queries=150, keys=150, k=16, batch=1, heads=2, key_heads=2, dtype=torch.float32)
    assert_equal(tensors, 1e-4, causal=causal)


@small_blocks
@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_extreme_scores_equal_the_reference(size: float):
    tensors = make(("bias", "query", "value"))
    tensors["bias"][:, 1] = size
    tensors["bias"][:, -1] = -size
    assert_equal(tensors)
    assert_equal(tensors, causal=True)


@small_blocks
def test_a_query_that_sees_nothing_has_zero_output_and_gradient():
    tensors = {name: tensor.requires_grad_() for name, tensor in make(COMBINATIONS[-1]).items()}
    output = by_banded(tensors, causal=True, padding=PADDING)
    assert not output[1, :, :9].any()
    output[1, :, :9].sum().backward()
    for tensor in tensors.values():
        assert torch.isfinite(tensor.grad).all()
        assert not tensor.grad.any()


@small_blocks
def test_frozen_tables_get_no_gradient_and_change_no_other():
    tensors = make(("query", "value"))
    expected = reference.output_and_gradients(by_banded, tensors)
    frozen = {name: tensors[name] for name in ("query", "value")}
    states = {name: tensors[name] for name in ("q", "k", "v")}
    actual = reference.output_and_gradients(lambda leaves: by_banded({**leaves, **frozen}), states)
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-13)


@small_blocks
def test_two_runs_are_bit_equal():
    tensors = make(COMBINATIONS[-1], dtype=torch.float32)
    first, second = (reference.output_and_gradients(by_banded, tensors) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_keeps_the_dtype_also_under_autocast(dtype: torch.dtype):
    tensors = {name: tensor.requires_grad_() for name, tensor in make(("query", "value"), dtype=dtype).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = by_banded(tensors)
        output.float().sum().backward()
    assert output.dtype == dtype
    assert all(tensor.grad.dtype == dtype for tensor in tensors.values())
    torch.testing.assert_close(output, by_banded(tensors), rtol=0, atol=0)


@small_blocks
def test_the_largest_tensor_grows_linearly():
    def largest(length: int) -> int:
        from torch.utils._python_dispatch import TorchDispatchMode

        sizes = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for tensor in result if isinstance(result, (tuple, list)) else [result]:
                    if isinstance(tensor, Tensor):
                        sizes.append(tensor.numel())
                return result

        tensors = make(("query", "value"), queries=length, keys=length, batch=1, heads=1, key_heads=1)
        tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
        with Watch():
            by_banded(tensors).sum().backward()
        return max(sizes)

    assert largest(192) < 2.3 * largest(96)


# What it refuses


def case(**changes: Any) -> tuple[Tensor, Tensor, RelativeTerms, AttentionMask, float]:
    states = torch.zeros(1, 1, 8, 4)
    terms = changes.get("terms", RelativeTerms(bias=torch.zeros(1, 3)))
    mask = AttentionMask(**{"query_length": 8, "key_length": 8, **changes.get("mask", {})})
    return states, changes.get("value", states), terms, mask, changes.get("dropout", 0.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropout": 0.1}, "attention dropout"),
        ({"terms": RelativeTerms(key=torch.zeros(1, 3, 4))}, "terms on the key"),
        ({"mask": {"window": 3}}, "masks other than causality and padding"),
        ({"mask": {"dense": torch.zeros(1, 1, 8, 8)}}, "masks other than causality and padding"),
        ({"mask": {"pattern": lambda i, j: i >= j}}, "masks other than causality and padding"),
        ({"mask": {"query_offset": torch.tensor(0)}}, "queries that do not stand among the keys"),
        ({"mask": {"query_offset": 1}}, "queries that do not stand among the keys"),
        ({"value": torch.zeros(1, 1, 8, 5)}, "values of another size"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name_and_left_to_others_by_auto(changes: dict[str, Any], reason: str):
    query, value, terms, mask, dropout = case(**changes)
    with pytest.raises(ValueError, match=f"'banded' cannot take {reason}.*'blockwise', which takes everything"):
        choose("banded", query, query, value, terms, mask, dropout)
    assert choose("auto", query, query, value, terms, mask, dropout) != "banded"


def test_it_takes_the_plain_case():
    query, value, terms, mask, dropout = case()
    assert REFUSES["banded"](query, value, terms, mask, dropout) is None


@pytest.fixture
def _changed_operator(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.setattr(banded, "_operator", request.param)
    banded.operator_is_sound.cache_clear()
    yield
    banded.operator_is_sound.cache_clear()


def _gone(*args: Any, **kwargs: Any) -> Any:
    raise AttributeError("no such operator")


def _wrong(query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return query * 0, query[..., 0] * 0


@pytest.mark.parametrize("_changed_operator", [_gone, _wrong], indirect=True)
@pytest.mark.usefixtures("_changed_operator")
def test_without_a_sound_operator_it_refuses_and_says_so(caplog: pytest.LogCaptureFixture):
    query, value, terms, mask, dropout = case()
    with caplog.at_level("WARNING"):
        assert REFUSES["banded"](query, value, terms, mask, dropout) == "this release of PyTorch"
    assert "'eager' and 'blockwise' run instead" in caplog.text
