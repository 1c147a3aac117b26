"""The tiled engines against the pair-by-pair reference; what they refuse; and what happens if PyTorch changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairwise import pairs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging

from hf_relpos.engines import ENGINE_NAMES, ENGINES, attend, choose, eager
from hf_relpos.engines.cpu import banded, dense, tables, tiles, toeplitz
from hf_relpos.engines.cpu import operators as fused
from hf_relpos.engines.engine import Case, takes_everything
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
# Every engine with the terms it takes.
CASES = [
    *((name, terms) for name in ("dense", "banded") for terms in COMBINATIONS),
    *(("toeplitz", terms) for terms in (("bias",), ("native_bias",), ("bias", "native_bias"))),
]
RICHEST = [("dense", COMBINATIONS[-1]), ("banded", COMBINATIONS[-1]), ("toeplitz", ("bias", "native_bias"))]
rich_engines = pytest.mark.parametrize(("engine", "terms"), RICHEST, ids=[name for name, _ in RICHEST])
PADDING = torch.tensor([[True] * 12 + [False] * 11, [False] * 9 + [True] * 14])


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of three queries, blocks of four, and a part of the heads at a time where tiles are wide."""
    monkeypatch.setattr(dense, "ROWS", 3)
    monkeypatch.setattr(banded, "SPAN", 4)
    monkeypatch.setattr(toeplitz, "SPAN", 4)
    monkeypatch.setattr(tables, "TILE_SCORES", 150)


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


def by_engine(tensors: dict[str, Tensor], engine: str, offset: int = 0, **rules: Any) -> Tensor:
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], query_offset=offset, **rules)
    return attend(
        tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), mask, scale=SCALE, engine=engine
    )[0]  # fmt: skip


def by_reference(tensors: dict[str, Tensor], offset: int = 0, **rules: Any) -> Tensor:
    (batch, heads, queries, _), keys = tensors["q"].shape, tensors["k"].shape[2]
    allowed = reference.allowed_pairs(batch, heads, queries, keys, query_offset=offset, **rules)
    return reference.attention(
        tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), scale=SCALE, query_offset=offset, allowed=allowed
    )[0]  # fmt: skip


def learning(tensors: dict[str, Tensor], engine: str) -> dict[str, Tensor]:
    """Those of the tensors that an engine lets learn."""
    return {name: tensor for name, tensor in tensors.items() if engine != "toeplitz" or name in ("q", "k", "v")}


def output_and_gradients(
    compute: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor], engine: str
) -> dict[str, Tensor]:
    """What is computed, and the gradients of all that the engine lets learn."""
    return reference.output_and_gradients(lambda leaves: compute({**tensors, **leaves}), learning(tensors, engine))


def assert_equal(tensors: dict[str, Tensor], engine: str, tolerance: float = 1e-10, **rules: Any) -> None:
    actual = output_and_gradients(partial(by_engine, engine=engine, **rules), tensors, engine)
    expected = output_and_gradients(partial(by_reference, **rules), tensors, engine)
    reference.assert_all_close(actual, expected, tolerance)


@small_blocks
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_cases_equal_the_reference(data: st.DataObject):
    engine, terms = data.draw(st.sampled_from(CASES))
    queries = data.draw(st.integers(1, 20))
    offset = data.draw(st.integers(0, 8))
    keys = queries + offset + data.draw(st.integers(0, 6))
    batch = data.draw(st.integers(1, 3))
    rules: dict[str, Any] = {"causal": data.draw(st.booleans()), "offset": offset}
    if engine != "toeplitz" and data.draw(st.booleans()):
        rules["window"] = data.draw(st.integers(0, 12))
    if data.draw(st.booleans()):
        if engine == "toeplitz":
            ends = [sorted((data.draw(st.integers(0, keys)), data.draw(st.integers(0, keys)))) for _ in range(batch)]
            tokens = [[start <= at < stop for at in range(keys)] for start, stop in ends]
        else:
            tokens = [data.draw(st.lists(st.booleans(), min_size=keys, max_size=keys)) for _ in range(batch)]
        rules["padding"] = torch.tensor(tokens)
    k, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 2**16))
    assert_equal(make(terms, queries=queries, keys=keys, batch=batch, k=k, seed=seed), engine, **rules)


@pytest.mark.parametrize("causal", [False, True])
@rich_engines
def test_its_own_sizes_equal_the_reference_in_float32(engine: str, terms: tuple[str, ...], causal: bool):
    tensors = make(terms, queries=600, keys=600, k=16, batch=1, heads=2, key_heads=2, dtype=torch.float32)
    assert_equal(tensors, engine, 3e-4, causal=causal)


@small_blocks
@pytest.mark.parametrize("size", [-1e4, 1e4])
@pytest.mark.parametrize("engine", ["dense", "banded", "toeplitz"])
def test_extreme_scores_equal_the_reference(engine: str, size: float):
    tensors = make(("bias",) if engine == "toeplitz" else ("bias", "query", "value"))
    tensors["bias"][:, 1] = size
    tensors["bias"][:, -1] = -size
    assert_equal(tensors, engine)
    assert_equal(tensors, engine, causal=True)


@small_blocks
@rich_engines
def test_inputs_that_are_not_contiguous_equal_the_reference(engine: str, terms: tuple[str, ...]):
    tensors = make(terms)
    for name in ("q", "k", "v"):
        strange = torch.randn(2, 23, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        tensors[name] = strange.permute(0, 3, 1, 2)[:, ::2]
    assert_equal(tensors, engine)


@small_blocks
@rich_engines
def test_a_query_that_sees_nothing_has_zero_output_and_gradient(engine: str, terms: tuple[str, ...]):
    tensors = make(terms)
    leaves = {name: tensor.requires_grad_() for name, tensor in learning(tensors, engine).items()}
    output = by_engine(tensors, engine, causal=True, padding=PADDING)
    assert not output[1, :, :9].any()
    output[1, :, :9].sum().backward()
    for tensor in leaves.values():
        assert torch.isfinite(tensor.grad).all()
        assert not tensor.grad.any()


@small_blocks
@pairs(engine=("dense", "banded"), terms=COMBINATIONS, causal=(False, True))
def test_frozen_tables_get_no_gradient_and_change_no_other(engine: str, terms: tuple[str, ...], causal: bool):
    tensors = make(terms)
    expected = reference.output_and_gradients(partial(by_engine, engine=engine, causal=causal), tensors)
    for frozen in [set(terms), *({name} for name in terms)]:
        fixed = {name: tensors[name] for name in frozen}
        leaves = {name: tensor for name, tensor in tensors.items() if name not in frozen}
        actual = reference.output_and_gradients(
            lambda leaves, fixed=fixed: by_engine({**leaves, **fixed}, engine, causal=causal), leaves
        )
        for name, tensor in actual.items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)


@small_blocks
@rich_engines
def test_two_runs_are_bit_equal_whatever_ran_before(engine: str, terms: tuple[str, ...]):
    tensors = make(terms, dtype=torch.float32)
    run = partial(output_and_gradients, partial(by_engine, engine=engine), engine=engine)
    first = run(tensors)
    run(make(terms, queries=40, keys=40, dtype=torch.float32))
    for memory in tiles.Scratch._kept.__dict__.values():
        memory.fill_(float("nan"))  # the worst that a call can leave behind
    second = run(tensors)
    assert all(torch.equal(first[name], second[name]) for name in first)


@small_blocks
@rich_engines
def test_scratch_memory_made_without_gradients_serves_with_them(engine: str, terms: tuple[str, ...]):
    tiles.Scratch._kept.__dict__.clear()
    with torch.inference_mode():
        by_engine(make(terms), engine)
    assert_equal(make(terms), engine)


@small_blocks
@rich_engines
def test_threads_do_not_share_scratch_memory(engine: str, terms: tuple[str, ...]):
    many = [make(terms, seed=seed, queries=37, keys=37) for seed in range(8)]
    run = partial(output_and_gradients, partial(by_engine, engine=engine), engine=engine)
    expected = [run(tensors) for tensors in many]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(run, many))
    for one, other in zip(actual, expected, strict=True):
        reference.assert_all_close(one, other, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@rich_engines
def test_it_keeps_the_dtype_also_under_autocast(engine: str, terms: tuple[str, ...], dtype: torch.dtype):
    tensors = make(terms, dtype=dtype)
    leaves = {name: tensor.requires_grad_() for name, tensor in learning(tensors, engine).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = by_engine(tensors, engine)
        output.float().sum().backward()
    assert output.dtype == dtype
    assert all(tensor.grad.dtype == dtype for tensor in leaves.values())
    torch.testing.assert_close(output, by_engine(tensors, engine), rtol=0, atol=0)


@small_blocks
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@rich_engines
def test_the_largest_tensor_grows_linearly(engine: str, terms: tuple[str, ...], causal: bool, window: int | None):
    if window is not None and engine == "toeplitz":
        pytest.skip("takes no window")

    def largest(length: int) -> int:
        sizes = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for tensor in result if isinstance(result, (tuple, list)) else [result]:
                    if isinstance(tensor, Tensor):
                        # What a view shows may be more than there is.
                        sizes.append(min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size()))
                return result

        tensors = make(terms, queries=length, keys=length, batch=1, heads=1, key_heads=1)
        for tensor in learning(tensors, engine).values():
            tensor.requires_grad_()
        tiles.Scratch._kept.__dict__.clear()
        with Watch():
            by_engine(tensors, engine, causal=causal, window=window).sum().backward()
        return max(sizes)

    assert largest(384) < 2.3 * largest(192)


# Dropout


def with_dropout(tensors: dict[str, Tensor], dropout: float, **rules: Any) -> Tensor:
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], **rules)
    terms = terms_of(tensors)
    return attend(
        tensors["q"], tensors["k"], tensors["v"], terms, mask, scale=SCALE, dropout=dropout, engine="dense"
    )[0]  # fmt: skip


def dropped_reference(tensors: dict[str, Tensor], kept: Tensor, **rules: Any) -> Tensor:
    """Attention whose weights are times ``kept``, by the eager engine's own way to drop them."""
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], **rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager.F, "dropout", lambda weights, probability: weights * kept)
        return eager.attend(
            tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), mask, scale=SCALE, dropout=0.5
        )[0]  # fmt: skip


def which_are_kept(tensors: dict[str, Tensor], dropout: float, seed: int, causal: bool) -> Tensor:
    """The factor of every weight, read off equal weights by giving every key a value of its own."""
    queries, dim, keys = tensors["q"].shape[2], tensors["q"].shape[3], tensors["k"].shape[2]
    equal = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    seen = torch.arange(1, queries + 1).unsqueeze(-1) if causal else keys
    columns = []
    for start in range(0, keys, dim):
        values = torch.zeros_like(tensors["v"])
        for at in range(start, min(start + dim, keys)):
            values[:, :, at, at - start] = 1
        torch.manual_seed(seed)
        columns.append(with_dropout({**equal, "v": values}, dropout, causal=causal) * seen)
    return torch.cat(columns, dim=-1)[..., :keys]


@small_blocks
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("terms", COMBINATIONS, ids=" ".join)
def test_dropout_drops_the_same_weights_forward_and_backward(terms: tuple[str, ...], causal: bool):
    tensors = make(terms)

    def run(leaves: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(5)
        return with_dropout(leaves, 0.4, causal=causal)

    kept = which_are_kept(tensors, 0.4, 5, causal)
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / 0.6))
    pairs = kept.numel() * (24 / 46 if causal else 1)
    assert 0.5 < kept.count_nonzero() / pairs < 0.7
    actual = reference.output_and_gradients(run, tensors)
    expected = reference.output_and_gradients(partial(dropped_reference, kept=kept, causal=causal), tensors)
    reference.assert_all_close(actual, expected, 1e-10)


def test_dropout_follows_the_seed_and_is_new_every_time():
    tensors = make(("query", "value"))
    torch.manual_seed(1)
    first, second = with_dropout(tensors, 0.5), with_dropout(tensors, 0.5)
    torch.manual_seed(1)
    again = with_dropout(tensors, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


# What they refuse


def case(**changes: Any) -> Case:
    states = torch.zeros(1, 1, 8, 4)
    terms = changes.get("terms", RelativeTerms(bias=torch.zeros(1, 3)))
    mask = AttentionMask(**{"query_length": 8, "key_length": 8, **changes.get("mask", {})})
    return Case(states, states, changes.get("value", states), terms, mask, changes.get("dropout", 0.0))


NOT_DENSE = [
    ({"terms": RelativeTerms(key=torch.zeros(1, 3, 4))}, "terms on the key"),
    ({"mask": {"dense": torch.zeros(1, 1, 8, 8)}}, "masks other than causality, padding and a window"),
    ({"mask": {"pattern": lambda i, j: i >= j}}, "masks other than causality, padding and a window"),
    ({"mask": {"query_offset": torch.tensor(0)}}, "queries that do not stand among the keys"),
    ({"mask": {"query_offset": 1}}, "queries that do not stand among the keys"),
    ({"value": torch.zeros(1, 1, 8, 5)}, "values of another size"),
]
NOT_BANDED = [*NOT_DENSE, ({"dropout": 0.1}, "attention dropout")]
NOT_TOEPLITZ = [
    *NOT_BANDED,
    ({"terms": RelativeTerms(bias=torch.zeros(1, 3, requires_grad=True))}, "a bias that learns"),
    ({"terms": RelativeTerms(native_bias=torch.zeros(1, 3, requires_grad=True))}, "a bias that learns"),
    ({"terms": RelativeTerms(query=torch.zeros(1, 3, 4))}, "terms on the query or the value"),
    ({"terms": RelativeTerms(value=torch.zeros(1, 3, 4))}, "terms on the query or the value"),
    ({"terms": RelativeTerms(bias=torch.zeros(1, 3), gate=torch.ones(1, 1, 8))}, "a bias that is gated by the query"),
    ({"mask": {"window": 3}}, "a window"),
    ({"mask": {"padding": torch.tensor([[True, False] * 4])}}, "padding between the tokens"),
]


@pytest.mark.parametrize(
    ("engine", "changes", "reason"),
    [
        *(("dense", *case) for case in NOT_DENSE),
        *(("banded", *case) for case in NOT_BANDED),
        *(("toeplitz", *case) for case in NOT_TOEPLITZ),
    ],
)
def test_what_it_cannot_take_is_refused_by_name_and_left_to_others_by_auto(
    engine: str, changes: dict[str, Any], reason: str
):
    asked = case(**changes)
    with pytest.raises(ValueError, match=f"'{engine}' cannot take {reason}.*'blockwise', which takes everything"):
        choose(engine, asked)
    assert choose("auto", asked) != engine


REFUSING = [name for name in ENGINE_NAMES if name != "auto" and ENGINES[name].refuses is not takes_everything]


@pytest.mark.parametrize("engine", REFUSING)
def test_it_takes_the_plain_case(engine: str):
    assert ENGINES[engine].refuses(case()) is None


@pytest.fixture
def _changed_operator(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.setattr(fused, "attend", request.param)
    fused.is_sound.cache_clear()
    yield
    fused.is_sound.cache_clear()


def _gone(*args: Any, **kwargs: Any) -> Any:
    raise AttributeError("no such operator")


def _wrong(query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return query * 0, query[..., 0] * 0


@pytest.mark.parametrize("_changed_operator", [_gone, _wrong], indirect=True)
@pytest.mark.parametrize("engine", ["banded", "toeplitz"])
@pytest.mark.usefixtures("_changed_operator")
def test_without_a_sound_operator_it_refuses_and_says_so(engine: str, caplog: pytest.LogCaptureFixture):
    logger_cache = getattr(logging.get_logger("hf_relpos").warning_once, "cache_clear", None)
    if logger_cache is not None:
        logger_cache()
    with caplog.at_level("WARNING"):
        assert ENGINES[engine].refuses(case()) == "this release of PyTorch"
    assert "the other engines run instead" in caplog.text
    assert choose("auto", case()) not in ("banded", "toeplitz")


def test_the_operators_of_other_devices_have_the_form_that_is_expected_of_them():
    query, key = torch.empty(2, 3, 40, 16, device="meta"), torch.empty(2, 3, 50, 16, device="meta")
    output, log_sum = fused.attend(query, key, key, None, 0.5)
    assert output.shape == query.shape
    assert log_sum.shape == (2, 3, 40)
    grads = fused.attend_backward(query, query, key, key, output, log_sum, None, 0.5)
    assert [grad.shape for grad in grads] == [query.shape, key.shape, key.shape]


def test_auto_stays_with_what_runs_everywhere_off_the_cpu():
    states = torch.empty(1, 1, 4096, 4, device="meta")
    terms = RelativeTerms(bias=torch.zeros(1, 3, device="meta"))
    asked = Case(states, states, states, terms, AttentionMask(4096, 4096))
    assert choose("auto", asked) == "blockwise"
    for engine in REFUSING:
        with pytest.raises(ValueError, match="cannot take tensors on 'meta'"):
            choose(engine, asked)
