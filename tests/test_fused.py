"""The engine `fused`: the compiled kernel computes what the reference spells out, whatever it is given."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hf_relpos.engines import attend, eager, fused
from hf_relpos.engines.cpu import fused as cpu
from hf_relpos.engines.cpu import library
from hf_relpos.engines.engine import Case
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

pytestmark = pytest.mark.skipif(isinstance(library.load(), str), reason=str(library.load()))

TERMS = ("bias", "query", "key", "value", "gate", "native_bias")
SCALE = 0.37


def make(
    terms: tuple[str, ...] = TERMS,
    *,
    batch: int = 2,
    heads: int = 4,
    key_heads: int | None = None,
    queries: int = 7,
    keys: int = 9,
    dim: int = 5,
    value_dim: int = 3,
    k: int | dict[str, int] = 3,
    shared: bool = False,
    gate_batch: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """The tensors of a problem by name, with random numbers of size 1, tables included."""
    random = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    key_heads = heads if key_heads is None else key_heads
    tensors = {
        "q": random(batch, heads, queries, dim),
        "k": random(batch, key_heads, keys, dim),
        "v": random(batch, key_heads, keys, value_dim),
    }
    for name in terms:
        rows = 2 * (k if isinstance(k, int) else k[name]) + 1
        tables = 1 if shared else heads
        if name == "gate":
            tensors[name] = random(batch if gate_batch is None else gate_batch, heads, queries)
        elif "bias" in name:
            tensors[name] = random(tables, rows)
        else:
            tensors[name] = random(tables, rows, value_dim if name == "value" else dim)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def terms_of(tensors: dict[str, Tensor]) -> RelativeTerms:
    return RelativeTerms(**{name: tensor for name, tensor in tensors.items() if name in TERMS})


def by_fused(tensors: dict[str, Tensor], dropout: float = 0.0, scale: float = SCALE, **rules: Any) -> Tensor:
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], **rules)
    given = (tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), mask)
    assert fused.refuses(Case(*given)) is None
    return fused.attend(*given, scale=scale, dropout=dropout)[0]


def by_reference(tensors: dict[str, Tensor], keep: Tensor | None = None, **rules: Any) -> Tensor:
    (batch, heads, queries, _), keys = tensors["q"].shape, tensors["k"].shape[2]
    allowed = reference.allowed_pairs(batch, heads, queries, keys, **rules)
    return reference.attention(
        tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), scale=SCALE, allowed=allowed, keep=keep,
        query_offset=rules.get("query_offset", 0),
    )[0]  # fmt: skip


def all_of(compute: Callable[..., Tensor], tensors: dict[str, Tensor], **rules: Any) -> dict[str, Tensor]:
    """The output and the gradient of every tensor: zero where it has no part in the output."""
    results = reference.output_and_gradients(lambda leaves: compute(leaves, **rules), tensors)
    return {name: torch.zeros(()) if result is None else result for name, result in results.items()}


def assert_right(tensors: dict[str, Tensor], **rules: Any) -> None:
    reference.assert_all_close(all_of(by_fused, tensors, **rules), all_of(by_reference, tensors, **rules), 1e-10)


PADDING = torch.tensor([[1, 1, 1, 0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 1, 1, 1]], dtype=torch.bool)

RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "causal after cached keys": {"causal": True, "query_offset": 2},
    "causal before all keys": {"causal": True, "query_offset": -3},
    "far after the keys": {"query_offset": 40},
    "far before the keys": {"query_offset": -40},
    "window": {"window": 1},
    "only itself": {"window": 0, "query_offset": 1},
    "only itself, which may be padding": {"window": 0, "padding": PADDING},
    "causal window after cached keys": {"window": 2, "causal": True, "query_offset": 2},
    "window out of sight": {"window": 1, "query_offset": 30},
    "padding": {"padding": PADDING},
    "padding of a whole sequence": {"padding": PADDING & torch.tensor([[True], [False]])},
    "causal padding": {"padding": PADDING, "causal": True, "query_offset": 2},
    "everything": {"padding": PADDING, "causal": True, "window": 2, "query_offset": 1},
}

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"terms": (name,)} for name in TERMS if name != "gate"},
    "no terms": {"terms": ()},
    "gated": {"terms": ("bias", "query", "key", "value", "gate")},
    "gate beside a native bias only": {"terms": ("gate", "native_bias")},
    "gate, one for the batch": {"gate_batch": 1},
    "shared by the heads": {"shared": True},
    "different horizons": {"k": {"bias": 4, "query": 2, "key": 1, "value": 5, "native_bias": 0, "gate": 0}},
    "horizon beyond the length": {"k": 12},
    "grouped keys": {"key_heads": 2},
    "one head of the keys": {"key_heads": 1},
    "one query": {"queries": 1},
    "one key": {"keys": 1},
    "numbers without a dimension": {"dim": 1, "value_dim": 1},
}


@pytest.mark.core
@pytest.mark.parametrize("rules", RULES)
def test_equals_the_reference_under_every_mask(rules: str):
    assert_right(make(), **RULES[rules])


@pytest.mark.core
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference_with_every_term_and_shape(kind: str):
    assert_right(make(**KINDS[kind]), causal=True, query_offset=2)


def by_eager(tensors: dict[str, Tensor], **rules: Any) -> Tensor:
    mask = AttentionMask(tensors["q"].shape[2], tensors["k"].shape[2], **rules)
    return eager.attend(tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), mask, scale=SCALE)[0]


@pytest.mark.core
@pytest.mark.parametrize("rules", [{}, {"causal": True}, {"window": 150}], ids=str)
def test_equals_eager_in_several_blocks_of_queries_and_pieces_of_keys(rules: dict[str, Any]):
    tensors = make(batch=1, heads=2, key_heads=1, queries=300, keys=1100, dim=8, value_dim=8, k=20)
    padding = torch.ones(1, 1100, dtype=torch.bool)
    padding[0, [0, 1, 40, 700, 1099]] = False
    given = {"query_offset": 500, "padding": padding, **rules}
    reference.assert_all_close(all_of(by_fused, tensors, **given), all_of(by_eager, tensors, **given), 1e-10)


@pytest.mark.core
def test_equals_eager_where_later_scores_make_nothing_of_all_before_them():
    tensors = make(batch=1, heads=2, key_heads=1, queries=5, keys=1100, dim=8, value_dim=8, k=20)
    tensors["k"][:, :, 700:] *= 1e4
    found = all_of(by_fused, tensors, query_offset=500)
    reference.assert_all_close(found, all_of(by_eager, tensors, query_offset=500), 1e-10)


@pytest.mark.core
@pytest.mark.parametrize("shared", [True, False], ids=["one table", "a table per head"])
def test_equals_eager_with_so_many_sequences_that_a_task_takes_several_heads(shared: bool):
    tensors = make(batch=20, heads=22, key_heads=11, queries=3, keys=4, dim=2, value_dim=2, shared=shared)
    reference.assert_all_close(all_of(by_fused, tensors, causal=True), all_of(by_eager, tensors, causal=True), 1e-10)


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    key_heads, batch, queries, keys = (draw(st.integers(1, n)) for n in (2, 2, 8, 11))
    rules: dict[str, Any] = {"causal": draw(st.booleans()), "query_offset": draw(st.integers(-14, 24))}
    if draw(st.booleans()):
        rules["window"] = draw(st.integers(0, 12))
    if draw(st.booleans()):
        tokens = st.lists(st.booleans(), min_size=batch * keys, max_size=batch * keys)
        rules["padding"] = torch.tensor(draw(tokens)).view(batch, keys)
    tensors = make(
        tuple(name for name in TERMS if draw(st.booleans())), batch=batch, heads=key_heads * draw(st.integers(1, 3)),
        key_heads=key_heads, queries=queries, keys=keys, dim=draw(st.integers(1, 4)),
        value_dim=draw(st.integers(1, 4)), k={name: draw(st.integers(0, 12)) for name in TERMS},
        shared=draw(st.booleans()), gate_batch=draw(st.sampled_from([1, batch])),
    )  # fmt: skip
    for name in "qkv":
        axes = draw(st.permutations(range(4)))
        back = sorted(range(4), key=axes.__getitem__)
        tensors[name] = tensors[name].permute(axes).contiguous().permute(back)
    return tensors, rules


@settings(max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems())
def test_equals_the_reference_on_any_problem(problem: tuple[dict[str, Tensor], dict[str, Any]]):
    tensors, rules = problem
    assert_right(tensors, **rules)


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "dim", "value_dim"])
def test_an_empty_axis_gives_empty_or_zero_results(empty: str):
    tensors = make(**{"key_heads": None, empty: 0})
    results = all_of(by_fused, tensors, causal=True)
    assert results["output"].shape == (*tensors["q"].shape[:3], tensors["v"].shape[-1])
    assert all(result.isfinite().all() for result in results.values())
    if empty == "keys":
        assert not any(result.any() for result in results.values())


@pytest.mark.parametrize("step", [2, 0], ids=["every second element", "one element over and over"])
def test_input_may_have_any_strides(step: int):
    tensors = make()
    for name in "qkv":
        if step:
            room = torch.full([step * size for size in tensors[name].shape], float("nan"), dtype=torch.float64)
            strided = room[(slice(None, None, step),) * 4]
            tensors[name] = strided.copy_(tensors[name])
        else:
            tensors[name] = tensors[name][:, :, :1].expand_as(tensors[name])
    output = by_fused(tensors)
    torch.testing.assert_close(output, by_reference(tensors), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wanted", ["q", "k", "v", *TERMS])
def test_any_single_gradient_is_the_one_among_all(wanted: str):
    tensors = make()
    expected = all_of(by_fused, tensors, causal=True)
    leaf = tensors[wanted].clone().requires_grad_()
    output = by_fused({**tensors, wanted: leaf}, causal=True)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    output.backward(cotangent)
    torch.testing.assert_close(leaf.grad, expected[f"gradient of {wanted}"], rtol=0, atol=1e-12)


@pytest.mark.core
@pytest.mark.parametrize(
    "rules", [{"padding": PADDING}, {"causal": True}, {"window": 1}], ids=["padding", "causal", "window"]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_hidden_keys_and_values_that_are_not_finite_stay_hidden(rules: dict[str, Any], bad: float):
    tensors = make()
    expected = all_of(by_fused, tensors, **rules)
    # The last key is hidden from the first queries, and from all of them where it is padding.
    hidden = ~PADDING[:, None, :, None] if "padding" in rules else torch.arange(9)[:, None] == 4
    spoiled = {**tensors, "k": tensors["k"].masked_fill(hidden, bad), "v": tensors["v"].masked_fill(hidden, bad)}
    actual = all_of(by_fused, spoiled, **rules)
    seen = torch.ones(7, dtype=torch.bool)
    if "causal" in rules:
        seen[4:] = False
    elif "window" in rules:
        seen[3:6] = False
    for name in ("output", "gradient of q"):
        torch.testing.assert_close(actual[name][:, :, seen], expected[name][:, :, seen], rtol=0, atol=1e-12)
    assert not actual["output"][:, :, ~seen].isfinite().any()


def test_a_query_that_is_not_finite_is_not_taken_for_one_that_sees_nothing():
    tensors = make()
    tensors["q"][:, :, 3] = float("nan")
    output = by_fused(tensors)
    assert output[:, :, 3].isnan().all()
    assert output[:, :, :3].isfinite().all()


@pytest.mark.core
def test_float32_is_exact_to_1e_5():
    tensors = make(queries=65, keys=65, dim=16, value_dim=16, k=8)
    low = {name: tensor.float() for name, tensor in tensors.items()}
    reference.assert_all_close(
        all_of(by_fused, low, causal=True, scale=0.25), all_of(by_fused, tensors, causal=True, scale=0.25), 1e-5
    )


@pytest.mark.core
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_err_at_most_twice_as_much_as_plain_attention(dtype: torch.dtype):
    tensors = make(("bias", "query", "value"), queries=96, keys=96, dim=32, value_dim=32, k=8, dtype=dtype)
    wide = {name: tensor.double() for name, tensor in tensors.items()}

    def plain(tensors: dict[str, Tensor]) -> Tensor:
        return F.scaled_dot_product_attention(tensors["q"], tensors["k"], tensors["v"], scale=SCALE)

    def errors(low: dict[str, Tensor], high: dict[str, Tensor]) -> dict[str, float]:
        return {name: ((low[name].double() - high[name]).norm() / high[name].norm()).item() for name in high}

    states = {name: tensors[name] for name in "qkv"}
    of_plain = errors(all_of(plain, states), all_of(plain, {name: wide[name] for name in "qkv"}))
    worst = max(of_plain.values())
    for name, error in errors(all_of(by_fused, tensors), all_of(by_fused, wide)).items():
        assert error <= 2 * of_plain.get(name, worst), f"{name}: {error:.2e} against {of_plain}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_numbers_of_every_kind_are_read_and_rounded_as_pytorch_does(dtype: torch.dtype):
    """The mean of each number and the next one: half of the time exactly between two numbers."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.float().abs() < 1e38]
    value = torch.stack([every, every.roll(1)])[None, None]
    query, key = torch.zeros(1, 1, 1, 4, dtype=dtype), torch.zeros(1, 1, 2, 4, dtype=dtype)
    for pair in (value, value[:, :, :1].expand_as(value)):
        assert torch.equal(by_fused({"q": query, "k": key, "v": pair}), pair.float().mean(2, keepdim=True).to(dtype))


# Dropout


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox 4x32 with 10 rounds, from the paper, for counters ``[n, 4]``."""
    words, low = counter.astype(np.uint64), np.uint64(0xFFFFFFFF)
    first_key, second_key = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * words[:, 0], np.uint64(0xCD9E8D57) * words[:, 2]
        words = np.stack([
            (second >> np.uint64(32)) ^ words[:, 1] ^ first_key, second & low,
            (first >> np.uint64(32)) ^ words[:, 3] ^ second_key, first & low,
        ], axis=1)  # fmt: skip
        first_key, second_key = (first_key + np.uint64(0x9E3779B9)) & low, (second_key + np.uint64(0xBB67AE85)) & low
    return words


def test_the_tests_generator_is_the_published_one():
    """Known answers that the authors publish with the algorithm."""
    zeros, ones = philox(np.zeros((1, 4)), (0, 0)), philox(np.full((1, 4), 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF))
    assert [hex(word) for word in zeros[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(word) for word in ones[0]] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def factors(seed: int, batch: int, heads: int, queries: int, keys: int, dropout: float) -> Tensor:
    """What the kernel multiplies the weights by, decided for each pair anew."""
    sequence, query, key = np.meshgrid(np.arange(batch * heads), np.arange(queries), np.arange(keys), indexing="ij")
    counter = np.stack([key // 32 * 8 + key % 8, query, sequence, 0 * key], axis=-1).reshape(-1, 4)
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    word = np.take_along_axis(words, (key.reshape(-1, 1) % 32) // 8, axis=1)
    kept = torch.from_numpy((word >= int(dropout * 2**32)).reshape(batch, heads, queries, keys))
    return kept.double() / (1 - dropout)


@pytest.mark.core
@pytest.mark.parametrize("rules", [{}, {"causal": True, "window": 30}], ids=["all keys", "from some key on"])
def test_dropout_equals_the_reference_with_the_weights_that_philox_drops(rules: dict[str, Any]):
    tensors = make(heads=2, queries=6, keys=70)
    given = {"query_offset": 60, **rules}
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, (1,)))
    keep = factors(seed, 2, 2, 6, 70, 0.3)
    torch.manual_seed(5)
    actual = all_of(by_fused, tensors, dropout=0.3, **given)
    reference.assert_all_close(actual, all_of(by_reference, tensors, keep=keep, **given), 1e-10)


def test_dropout_drops_as_many_as_asked_and_anew_in_every_call():
    query = torch.zeros(2, 3, 100, 4)
    value = torch.eye(100).expand(2, 3, 100, 100)
    first, second = (by_fused({"q": query, "k": query, "v": value}, dropout=0.2) for _ in range(2))
    assert not torch.equal(first, second)
    for output in (first, second):
        assert abs((output == 0).double().mean().item() - 0.2) < 5 * (0.16 / output.numel()) ** 0.5
        assert torch.allclose(output[output != 0], torch.tensor(1 / (100 * 0.8)))
    assert not by_fused({"q": query, "k": query, "v": value}, dropout=1.0).any()


# The same numbers, whoever asks


def everything(threads: int, dropout: float = 0.1) -> dict[str, Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    try:
        tensors = make(batch=1, heads=2, queries=520, keys=1100, dim=16, value_dim=16, k=30, dtype=torch.float32)
        return all_of(by_fused, tensors, dropout=dropout, causal=True, query_offset=580)
    finally:
        torch.set_num_threads(before)


@pytest.mark.core
def test_results_are_bit_equal_from_run_to_run_and_for_any_number_of_threads():
    expected = everything(1)
    for threads in (1, 2, 3, 5):
        for name, result in everything(threads).items():
            assert torch.equal(result, expected[name]), f"{name} with {threads} threads"


@pytest.mark.core
def test_results_are_bit_equal_wherever_in_memory_the_tables_lie():
    """A file that weights are read from puts them at any multiple of their size, and products round by it."""
    tensors = make(queries=11, keys=11, dim=8, value_dim=8, shared=True, dtype=torch.float32)

    def results(places: int) -> list[Tensor]:
        given = {}
        for name, tensor in tensors.items():
            room = torch.empty(tensor.numel() + places * (name in TERMS))
            given[name] = room[-tensor.numel() :].view_as(tensor).copy_(tensor).requires_grad_()
        output = by_fused(given)
        return [output, *torch.autograd.grad(output.square().sum(), list(given.values()))]

    expected = results(0)
    for places in range(1, 16):
        assert all(map(torch.equal, results(places), expected)), f"{places} places on"


def test_several_threads_may_call_at_once():
    tensors = make(queries=40, keys=60)
    expected = all_of(by_fused, tensors, causal=True)
    different: list[str] = []

    def work() -> None:
        for _ in range(20):
            results = all_of(by_fused, tensors, causal=True)
            different.extend(name for name in expected if not torch.equal(results[name], expected[name]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_computes_the_same():
    """As with PyTorch's own operators, with one thread: OpenMP's pool does not survive a fork."""
    code = """
import os, torch
torch.set_num_threads(1)
import sys; sys.path.insert(0, "tests")
from test_fused import all_of, by_fused, make
expected = all_of(by_fused, make(), causal=True)
child = os.fork()
if child == 0:
    results = all_of(by_fused, make(), causal=True)
    os._exit(0 if all(torch.equal(results[name], expected[name]) for name in expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[1])


@pytest.mark.core
def test_works_without_what_pytorch_lends(monkeypatch: pytest.MonkeyPatch):
    """Where PyTorch exports no matrix products and has no OpenMP, the kernel does without."""
    kernel = library.load()
    assert isinstance(kernel, library.Kernel)
    alone = library.Kernel(kernel.forward, kernel.backward, dict.fromkeys(kernel.lent, 0))
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        tensors = make(queries=70, keys=300, dim=20, value_dim=7, k=40, dtype=dtype)
        expected = all_of(by_fused, tensors, causal=True, query_offset=200)
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "load", lambda: alone)
            reference.assert_all_close(all_of(by_fused, tensors, causal=True, query_offset=200), expected, tolerance)


# Autograd and compilers


def test_is_one_graph_under_torch_compile():
    """Whose gradients are laid out as the compiler was told: those of a gate by tokens go on through a view."""
    tensors = make()
    tensors["gate"] = tensors["gate"].mT.flatten()

    def by_tokens(tensors: dict[str, Tensor]) -> Tensor:
        return by_fused({**tensors, "gate": tensors["gate"].view(2, 7, 4).mT}, causal=True)

    compiled = torch.compile(by_tokens, backend="aot_eager", fullgraph=True)
    reference.assert_all_close(all_of(compiled, tensors), all_of(by_tokens, tensors), 0.0)


def test_who_looks_on_sees_the_operators():
    """A tracer would else take what the kernel writes for memory that nothing was written to."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    tensors = make()
    with Watch():
        all_of(by_fused, tensors)
        by_fused(tensors)
    assert [name for name in seen if "hf_relpos" in name] == [
        "hf_relpos.fused_attention.default", "hf_relpos.fused_attention_backward.default",
        "hf_relpos.fused_attention.default",
    ]  # fmt: skip


def test_the_operators_keep_pytorchs_contracts():
    tensors = make(terms=("bias", "query", "value"), queries=5, keys=5)
    arguments = (
        *(tensors[name].requires_grad_() for name in ("q", "k", "v", "bias")), tensors["query"], None,
        tensors["value"], None, None, PADDING[:, :5], None, 0, True, None, SCALE, 0.0,
    )  # fmt: skip
    torch.library.opcheck(
        torch.ops.hf_relpos.fused_attention.default, arguments,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )  # fmt: skip


def test_second_derivatives_are_refused_with_the_engine_that_has_them():
    tensors = {name: tensor.requires_grad_() for name, tensor in make().items()}
    (gradient,) = torch.autograd.grad(by_fused(tensors).sum(), tensors["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="engine='eager'"):
        gradient.sum().backward()


def test_a_padding_mask_that_is_filled_anew_before_the_backward_pass_changes_no_gradient():
    tensors, padding = make(), PADDING.clone()
    expected = all_of(by_fused, tensors, padding=PADDING)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    output = by_fused(leaves, padding=padding)
    padding[:] = True
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    output.backward(cotangent)
    for name, leaf in leaves.items():
        assert torch.equal(leaf.grad, expected[f"gradient of {name}"]), name


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a dense mask": ({"dense": torch.ones(1, 1, 7, 9, dtype=torch.bool)}, "masks other than causality"),
    "a rule": ({"pattern": lambda query, key: key <= query}, "masks other than causality"),
    "a position on the device": ({"query_offset": torch.tensor(2)}, "only known on the device"),
    "a position out of the world": ({"query_offset": 2**41}, "position 2199023255552"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_take_is_refused_in_words(case: str):
    rules, words = REFUSED[case]
    tensors = make()
    refusal = fused.refuses(
        Case(tensors["q"], tensors["k"], tensors["v"], terms_of(tensors), AttentionMask(7, 9, **rules))
    )
    assert refusal is not None
    assert words in refusal


def test_transforms_and_forward_mode_are_refused_in_words():
    tensors, seen = make(), []

    def ask(query: Tensor) -> Tensor:
        seen.append(fused.refuses(Case(query, tensors["k"], tensors["v"], terms_of(tensors), AttentionMask(7, 9))))
        return query.sum()

    torch.func.grad(ask)(tensors["q"])
    with torch.autograd.forward_ad.dual_level():
        ask(torch.autograd.forward_ad.make_dual(tensors["q"], tensors["q"]))
    assert seen == ["transforms of torch.func", "forward-mode differentiation"]


@pytest.mark.parametrize("wrong", [
    {"k": (2, 4, 9, 6)}, {"k": (1, 4, 9, 5)}, {"v": (2, 4, 8, 3)}, {"bias": (3, 7)}, {"bias": (4, 6)},
    {"query": (4, 7, 4)}, {"value": (4, 7, 5)}, {"gate": (2, 4, 6)}, {"k": (2, 3, 9, 5), "v": (2, 3, 9, 3)},
], ids=str)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused_before_memory_is_read(wrong: dict[str, tuple[int, ...]]):
    tensors = {**make(), **{name: torch.zeros(shape, dtype=torch.float64) for name, shape in wrong.items()}}
    with pytest.raises(ValueError, match="must"):
        by_fused(tensors)


def test_a_library_of_another_release_is_not_called(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "RECORD", Struct(f"{library.RECORD.format}q"))
    assert "another release" in str(library.load.__wrapped__())


def test_a_missing_library_is_told_with_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(library.logger, "warning", lambda *words: said.append(words))
    monkeypatch.setattr(library, "FILE", tmp_path / "kernel.native.so")
    missing = library.load.__wrapped__()
    assert "was not compiled" in str(missing)
    assert "C++ compiler" in str(missing)
    (words, reason), *more = said
    assert "engine='auto' runs 'blockwise'" in words
    assert (reason, more) == (missing, [])
    (tmp_path / "kernel.native.so").write_bytes(b"no library")
    assert "can't be loaded" in str(library.load.__wrapped__())

    monkeypatch.setattr(cpu, "load", lambda: missing)
    tensors = make()
    states = tensors["q"], tensors["k"], tensors["v"]
    with pytest.raises(ValueError, match=r"'fused' cannot take .*was not compiled.*C\+\+ compiler.*Use engine='auto'"):
        attend(*states, terms_of(tensors), AttentionMask(7, 9), scale=SCALE, engine="fused")
