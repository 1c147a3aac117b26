"""Every engine computes the same function: the one the reference spells out pair by pair, gradients included."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import reference
import torch
from cases import CHOICES, SMALL_BLOCKS, TERMS, Case, make_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairwise import pairs
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos.engines import ENGINES, attend, choose
from hf_relpos.engines import engine as records
from hf_relpos.gates import GATES
from hf_relpos.masks import AttentionMask
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.schemes import AttentionGeometry
from hf_relpos.schemes.t5 import bucket_of
from hf_relpos.terms import RelativeTerms

# Engines that hold all scores at once.
QUADRATIC = {"eager"}

TAKE_ALL = [name for name, engine in ENGINES.items() if engine.refuses is records.takes_everything]
IN_SMALL_BLOCKS = [f"{name} in small blocks" for name in TAKE_ALL if SMALL_BLOCKS[name]]


@pytest.fixture(params=[*TAKE_ALL, *IN_SMALL_BLOCKS])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of each engine, and once more with blocks so small that several are needed."""
    name, _, small = request.param.partition(" in ")
    if small:
        for constant, value in SMALL_BLOCKS[name].items():
            monkeypatch.setattr(constant, value)
    return name


FLOAT_MASK = (
    torch.randn(1, 4, 7, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    .masked_fill(torch.rand(1, 4, 7, 9, generator=torch.Generator().manual_seed(3)) < 0.3, float("-inf"))
)  # fmt: skip


@pytest.mark.core
def test_equals_the_reference_under_a_float_mask_that_learns(engine: str):
    case = make_case(keys=9, query_offset=2)
    case.tensors["dense"] = FLOAT_MASK
    reference.assert_all_close(case.actual(engine), case.expected(), 1e-10)


@pytest.mark.core
@pairs(length=(1, 2, 5, 7), k=(1, 2, 9), apart=("length", "k"))
def test_equals_equations_3_and_4_of_shaw_as_loops(engine: str, length: int, k: int):
    dim = 3
    case = make_case(
        ("query", "value"), queries=length, heads=2, dim=dim, value_dim=dim, k=k, shared=True, scale=dim**-0.5
    )

    def loops(tensors: dict[str, Tensor]) -> Tensor:
        q, key, v = tensors["q"], tensors["k"], tensors["v"]
        tables = tensors["query"][0], tensors["value"][0]
        return torch.stack(
            [
                torch.stack([reference.shaw_loops(q[b, h], key[b, h], v[b, h], *tables) for h in range(2)])
                for b in range(2)
            ]
        )

    expected = reference.output_and_gradients(loops, case.tensors)
    reference.assert_all_close(case.actual(engine), expected, 1e-10)


@pytest.mark.core
@pytest.mark.parametrize("decoder", [False, True])
def test_equals_transformers_own_t5_attention(engine: str, decoder: bool):
    t5_config = T5Config(
        d_model=16, d_kv=6, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=10,
        is_decoder=decoder, dropout_rate=0.0, attn_implementation="eager",
    )  # fmt: skip
    t5 = T5Attention(t5_config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    torch.nn.init.normal_(t5.relative_attention_bias.weight)
    length = 23
    hidden = torch.randn(2, length, 16, dtype=torch.float64)
    bias = t5.compute_bias(length, length)
    if decoder:
        bias = bias.masked_fill(torch.ones(length, length).triu(1).bool(), torch.finfo(torch.float64).min)
    expected = t5(hidden, position_bias=bias)[0]
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), t5.relative_attention_bias.weight)

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (3, 6)).transpose(1, 2)

    buckets = bucket_of(torch.arange(-10, 11), 8, 10, causal=decoder)
    output, _ = attend(
        heads(t5.q(hidden)), heads(t5.k(hidden)), heads(t5.v(hidden)),
        RelativeTerms(bias=t5.relative_attention_bias.weight.T[:, buckets]),
        AttentionMask(length, length, causal=decoder), scale=1.0, engine=engine,
    )  # fmt: skip
    actual = t5.o(output.transpose(1, 2).flatten(2))
    (gradient,) = torch.autograd.grad(actual.square().sum(), t5.relative_attention_bias.weight)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10)


@st.composite
def random_cases(draw: st.DrawFn) -> Case:
    key_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 8)), draw(st.integers(1, 11))
    terms = tuple(name for name in TERMS if draw(st.booleans()))
    if not set(terms) - {"gate", "native_bias"}:  # a gate alone would have nothing to act on
        terms = ("bias", *terms)
    k = {name: draw(st.integers(1, 12)) for name in TERMS}
    batch = draw(st.integers(1, 2))
    rules: dict[str, Any] = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        rules["window"] = draw(st.integers(1, 12))
    if draw(st.booleans()):
        tokens = st.lists(st.booleans(), min_size=batch * keys, max_size=batch * keys)
        rules["padding"] = torch.tensor(draw(tokens)).view(batch, keys)
    return make_case(
        terms, batch=batch, heads=key_heads * groups, key_heads=key_heads, queries=queries, keys=keys,
        dim=draw(st.integers(1, 4)), value_dim=draw(st.integers(1, 4)), k=k, shared=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)), query_offset=draw(st.integers(-4, 12)),
        tensor_offset=draw(st.booleans()), rules=rules,
    )  # fmt: skip


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(case=random_cases())
def test_equals_the_reference_on_any_problem(engine: str, case: Case):
    reference.assert_all_close(case.actual(engine), case.expected(), 1e-10)


def test_input_need_not_be_contiguous(engine: str):
    case = make_case(keys=9, batch=3, queries=9)
    expected = case.by_reference(case.tensors)
    strided = {}
    for name, tensor in case.tensors.items():
        # Every second element of a larger tensor, with two axes swapped in memory.
        room = torch.zeros(*(2 * size for size in tensor.transpose(0, 1).shape), dtype=tensor.dtype)
        strided[name] = room[tuple(slice(None, None, 2) for _ in room.shape)].transpose(0, 1).copy_(tensor)
        assert not strided[name].is_contiguous()
    torch.testing.assert_close(case.by(engine, strided), expected, rtol=0, atol=1e-12)
    strided["q"] = case.tensors["q"][:1].expand(3, -1, -1, -1)
    expected = case.by_reference(strided)
    torch.testing.assert_close(case.by(engine, strided), expected, rtol=0, atol=1e-12)


@pytest.mark.core
def test_float32_is_exact_to_1e_5(engine: str):
    case = make_case(queries=65, keys=65, dim=16, value_dim=16, k=8, rules={"causal": True}, scale=0.25)
    reference.assert_all_close(case.to(torch.float32).actual(engine), case.expected(), 1e-5)


@pytest.mark.core
@pytest.mark.parametrize("length", [16, 192])
def test_bfloat16_errs_at_most_twice_as_much_as_plain_attention(engine: str, length: int):
    """Both are compared with float32 on the same, rounded input; errors are relative to the size of what is right."""
    terms = ("bias", "query", "key", "value")
    case = make_case(terms, queries=length, dim=32, value_dim=32, k=8, scale=32**-0.5).to(torch.bfloat16)

    def plain(tensors: dict[str, Tensor]) -> Tensor:
        return F.scaled_dot_product_attention(tensors["q"], tensors["k"], tensors["v"], scale=case.scale)

    def errors(low: dict[str, Tensor], high: dict[str, Tensor]) -> dict[str, float]:
        return {name: ((low[name].float() - high[name]).norm() / high[name].norm()).item() for name in high}

    states = {name: case.tensors[name] for name in "qkv"}
    exact = {name: tensor.float() for name, tensor in states.items()}
    of_plain = errors(reference.output_and_gradients(plain, states), reference.output_and_gradients(plain, exact))
    exact_case = case.to(torch.float32)
    of_engine = errors(case.actual(engine), exact_case.actual(engine))
    worst = max(of_plain.values())
    for name, error in of_engine.items():
        # Plain attention has no tables: their gradients are held to its worst one.
        allowed = 2 * of_plain.get(name, worst)
        assert error <= allowed, f"{name}: {error:.2e}, more than {allowed:.2e}"


@pytest.mark.core
@pytest.mark.parametrize("terms", [TERMS, ()], ids=["terms", "no terms"])
@pytest.mark.parametrize("kind", ["padding", "dense bool", "dense float", "window"])
def test_a_query_that_sees_nothing_gets_zero_and_no_gradient(engine: str, kind: str, terms: tuple[str, ...]):
    case = make_case(terms)
    blind = torch.zeros(2, 4, 7, dtype=torch.bool)
    if kind == "padding":
        blind[0] = True
        case.rules["padding"] = ~blind[:, 0]
    elif kind == "window":
        blind[:] = True
        case.rules["window"], case.query_offset = 1, 20
    else:
        blind[:, 1, 3] = blind[1, 2] = True
        hidden = blind[..., None].expand(2, 4, 7, 7)
        case.rules["dense"] = ~hidden
        if kind == "dense float":
            lowest = torch.finfo(torch.float64).min
            case.rules["dense"] = torch.zeros(2, 4, 7, 7, dtype=torch.float64).masked_fill(hidden, lowest)
    actual = case.actual(engine)
    assert (actual["output"][blind] == 0).all()
    assert (actual["gradient of q"][blind] == 0).all()
    assert (actual["output"][~blind] != 0).all()
    reference.assert_all_close(actual, case.expected(), 1e-10)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("where", ["q", "bias", "query", "native_bias"])
def test_scores_of_ten_thousand_overflow_nothing(engine: str, where: str, sign: float):
    case = make_case(keys=9, query_offset=2, rules={"causal": True})
    case.tensors[where] = sign * 1e4 * case.tensors[where]
    reference.assert_all_close(case.actual(engine), case.expected(), 1e-9)
    for dtype in (torch.float32, torch.bfloat16):
        for name, tensor in case.to(dtype).actual(engine).items():
            assert tensor.isfinite().all(), name


def test_no_gradient_mode_gives_the_same_output(engine: str):
    case = make_case(keys=9)
    with torch.no_grad():
        output = case.by(engine, case.tensors)
    assert torch.equal(output, case.actual(engine)["output"])


@pytest.mark.core
@pytest.mark.parametrize("changed", TERMS)
def test_every_term_has_an_effect_and_a_gradient(engine: str, changed: str):
    case = make_case()
    before = case.actual(engine)
    case.tensors[changed] = case.tensors[changed] + torch.randn_like(case.tensors[changed])
    assert (case.by(engine, case.tensors) - before["output"]).abs().max() > 1e-2
    assert (before[f"gradient of {changed}"] != 0).all()


@pytest.mark.core
def test_shifting_all_positions_changes_nothing(engine: str):
    case = make_case(keys=9, query_offset=1, rules={"causal": True, "window": 4})
    before = case.by(engine, case.tensors)
    shift = 5
    moved = dict(case.tensors)
    for name in "kv":
        unused = torch.randn(2, 4, shift, moved[name].shape[-1], dtype=torch.float64)
        moved[name] = torch.cat([unused, moved[name]], dim=2)
    padding = torch.arange(9 + shift).expand(2, -1) >= shift
    shifted = replace(case, query_offset=1 + shift, rules={**case.rules, "padding": padding})
    torch.testing.assert_close(shifted.by(engine, moved), before, rtol=0, atol=1e-12)


@pytest.mark.core
def test_queries_in_two_parts_give_what_they_give_at_once(engine: str):
    case = make_case(queries=9, rules={"causal": True})
    whole = case.by(engine, case.tensors)
    parts = []
    for start, stop in ((0, 4), (4, 9)):
        part = {**case.tensors, "q": case.tensors["q"][:, :, start:stop]}
        part["gate"] = case.tensors["gate"][..., start:stop]
        for tensor_offset in (False, True):
            chunk = replace(case, query_offset=start, tensor_offset=tensor_offset).by(engine, part)
            torch.testing.assert_close(chunk, whole[:, :, start:stop], rtol=0, atol=1e-12)
        parts.append(chunk)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)


# Dropout


def dropped(case: Case, engine: str, dropout: float, seed: int) -> Tensor:
    """The factors an engine's dropout puts on the weights under a seed: 0 or ``1 / (1 - dropout)``.

    With the identity as values, the output is the weights that dropout left.
    """
    terms = tuple(name for name in case.tensors if name in TERMS and name != "value")
    batch, heads, keys, _ = case.tensors["v"].shape
    probe = {name: case.tensors[name] for name in ("q", "k", *terms)}
    probe["v"] = torch.eye(keys, dtype=torch.float64).expand(batch, heads, keys, keys)
    torch.manual_seed(seed)
    left = case.by(engine, probe, dropout)
    return left / case.reference_with_weights(case.tensors)[1]


@pytest.mark.core
def test_dropout_keeps_the_same_weights_in_the_backward_pass(engine: str):
    case = make_case(queries=11, keys=12, k=4)
    keep = dropped(case, engine, 0.4, seed=3)
    nothing = keep.abs() < 1e-9
    assert 0.3 < nothing.double().mean() < 0.5
    torch.testing.assert_close(keep[~nothing], torch.full_like(keep[~nothing], 1 / 0.6))

    def seeded(tensors: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(3)
        output = case.by(engine, tensors, 0.4)
        torch.manual_seed(99)  # the backward pass has to bring its own state
        return output

    actual = reference.output_and_gradients(seeded, case.tensors)
    reference.assert_all_close(actual, case.expected(keep.detach().masked_fill(nothing, 0.0)), 1e-10)


def test_dropout_gradients_agree_with_finite_differences(engine: str):
    case = make_case(batch=1, heads=2, queries=7, dim=2, value_dim=2, k=2)
    names = list(case.tensors)

    def seeded(*values: Tensor) -> Tensor:
        torch.manual_seed(5)
        return case.by(engine, dict(zip(names, values, strict=True)), 0.3)

    leaves = [case.tensors[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(seeded, leaves, fast_mode=True)


def test_dropout_is_reproducible_under_a_seed_and_new_without(engine: str):
    case = make_case(queries=11)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(case.by(engine, case.tensors, 0.3))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    # two blocks or heads or sequences never share their random numbers
    keep = dropped(case, engine, 0.5, seed=1).abs() > 1e-9
    rows = keep.reshape(-1, keep.shape[-1])
    assert len(set(map(tuple, rows.tolist()))) > 0.9 * len(rows)


def test_dropout_leaves_the_expectation_alone(engine: str):
    copies = 4000
    case = make_case(batch=1, heads=2, queries=5, rules={"causal": True}, gate_batch=1)
    exact = case.by(engine, case.tensors)
    many = {**case.tensors, **{name: case.tensors[name].expand(copies, -1, -1, -1) for name in "qkv"}}
    outputs = case.by(engine, many, 0.3)
    deviation = outputs.std(0) / copies**0.5
    assert ((outputs.mean(0) - exact[0]).abs() <= 5 * deviation + 1e-12).all()


# Weights


@pytest.mark.core
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("terms", [TERMS, ()], ids=["terms", "no terms"])
def test_weights_are_the_true_probabilities(engine: str, terms: tuple[str, ...], dropout: float):
    case = make_case(terms, keys=9, query_offset=2, rules={"causal": True})
    t = case.tensors
    _, weights = attend(
        t["q"], t["k"], t["v"], case.terms(t), case.mask(t),
        scale=case.scale, dropout=dropout, engine=engine, weights=True,
    )  # fmt: skip
    torch.testing.assert_close(weights, case.reference_with_weights(t)[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 7, dtype=torch.float64))


def test_asking_for_weights_does_not_change_the_output(engine: str):
    case = make_case()
    t = case.tensors
    output, _ = attend(
        t["q"], t["k"], t["v"], case.terms(t), case.mask(t), scale=case.scale, engine=engine, weights=True
    )
    torch.testing.assert_close(output, case.by(engine, t), rtol=0, atol=1e-12)


def test_no_weights_come_unless_asked_for(engine: str):
    case = make_case()
    t = case.tensors
    output = attend(t["q"], t["k"], t["v"], case.terms(t), case.mask(t), scale=case.scale, engine=engine)
    assert output[1] is None


# Precision, memory, choice


@pytest.mark.core
@pytest.mark.parametrize("states", [torch.bfloat16, torch.float32])
def test_autocast_runs_and_changes_nothing(engine: str, states: torch.dtype):
    """Under autocast the projections give bfloat16, while the tables stay in float32."""
    case = make_case(queries=9, k=4)
    tensors = {
        name: tensor.to(states if name in ("q", "k", "v", "gate") else torch.float32)
        for name, tensor in case.tensors.items()
    }

    def autocast(leaves: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return case.by(engine, leaves)

    actual = reference.output_and_gradients(autocast, tensors)
    assert actual["output"].dtype == states
    for name, tensor in tensors.items():
        assert actual[f"gradient of {name}"].dtype == tensor.dtype
    expected = reference.output_and_gradients(partial(case.by, engine), tensors)
    reference.assert_all_close(actual, expected, 1e-6)


def largest_tensor(engine: str, length: int) -> int:
    """The most elements any tensor has during a forward and backward pass."""
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, Tensor):
                    sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
            return result

    case = make_case(
        ("bias", "query", "key", "value", "native_bias"), batch=1, heads=1, queries=length, dim=2, value_dim=2
    )
    with Watch():
        case.actual(engine)
    return max(sizes)


@pytest.mark.core
@pytest.mark.parametrize("engine", IN_SMALL_BLOCKS, indirect=True)
def test_the_largest_tensor_grows_linearly(engine: str):
    assert largest_tensor(engine, 192) < 2.3 * largest_tensor(engine, 96)


def chosen(engine: str, length: int, *names: str, dropout: float = 0.0, **mask: Any) -> str:
    """What runs for so many tokens and the terms of these names."""
    states = torch.empty(1, 1, length, 1)
    tables = {name: torch.zeros(1, 3, *[1] * (name != "bias"), requires_grad=True) for name in names or ("bias",)}
    mask_of_all = AttentionMask(length, length, **mask)
    return choose(engine, records.Case(states, states, states, RelativeTerms(**tables), mask_of_all, dropout))


def test_the_names_that_users_know_are_those_of_the_engines_they_choose():
    assert ("auto", *(name for name, engine in ENGINES.items() if engine.is_choice)) == ENGINE_NAMES


@pytest.mark.parametrize("more", [{}, {"causal": True, "window": 64}, {"dropout": 0.1}], ids=str)
@pytest.mark.parametrize("names", [("bias",), ("query", "value"), ("key",)])
@pytest.mark.parametrize("length", [1, 4096])
@pytest.mark.skipif("fused" not in CHOICES, reason="the kernel is not compiled")
def test_auto_runs_the_kernel_wherever_it_takes_the_case(length: int, names: tuple[str, ...], more: dict[str, Any]):
    assert chosen("auto", length, *names, **more) == "fused"


@pytest.mark.skipif("fused" not in CHOICES, reason="the kernel is not compiled")
def test_without_terms_the_kernel_runs_what_it_is_ahead_in_unless_another_engine_is_asked_for():
    def runs(engine: str, length: int, **rules: Any) -> str:
        states = torch.empty(1, 1, length, 1)
        mask = AttentionMask(length, length, **rules)
        return choose(engine, records.Case(states, states, states, RelativeTerms(), mask))

    assert (runs("auto", 9), runs("fused", 9)) == ("fused",) * 2
    assert {runs("auto", 0), runs("auto", 1), runs("fused", 1), runs("auto", 9, pattern=torch.ge)} == {"plain"}
    assert runs("blockwise", 9) == "plain"
    assert runs("eager", 9) == "eager"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("names", [("bias",), ("query", "value"), ("key",)])
@pytest.mark.parametrize("without", ["a kernel", "a rule that it takes"])
def test_auto_runs_what_is_linear_in_memory_where_the_kernel_does_not_and_the_input_is_long(
    without: str, names: tuple[str, ...], dropout: float, monkeypatch: pytest.MonkeyPatch
):
    rules = {"pattern": torch.ge} if without != "a kernel" else {}
    if without == "a kernel":
        monkeypatch.setattr("hf_relpos.engines.cpu.fused.load", lambda: "it was not compiled")
    assert chosen("auto", 64, *names, dropout=dropout, **rules) == "eager"
    assert chosen("auto", 4096, *names, dropout=dropout, **rules) == "blockwise"


def test_auto_takes_the_first_in_the_registry_that_pays_off_and_does_not_refuse(monkeypatch: pytest.MonkeyPatch):
    def engine(name: str, refusal: str | None, pays_off: bool) -> records.Engine:
        return records.Engine(name, ENGINES["eager"].attend, lambda case: refusal, lambda case: pays_off)

    ours = [engine("refuses", "tests", True), engine("dear", None, False), engine("fits", None, True)]
    monkeypatch.setattr("hf_relpos.engines.ENGINES", {one.name: one for one in ours} | ENGINES)
    assert chosen("auto", 4096) == "fits"
    assert chosen("dear", 4096) == "dear"
    with pytest.raises(ValueError, match="The engine 'refuses' cannot take tests"):
        chosen("refuses", 4096)


@pytest.mark.core
@pytest.mark.parametrize("gate", ["none", "head", "token"])
@pytest.mark.parametrize("name", CHOICES)
def test_who_takes_twenty_tokens_takes_one(name: str, gate: str):
    """The gate of a head comes with the tables for many queries, and as a gate for one."""
    heads, dim = 2, 4
    module = None if gate == "none" else GATES[gate](AttentionGeometry(num_heads=heads, head_dim=dim, causal=True))
    random = torch.Generator().manual_seed(0)
    for parameter in [] if module is None else module.parameters():
        torch.nn.init.normal_(parameter, generator=random)
    taken = {}
    for tokens in (20, 1):
        query = torch.randn(1, heads, tokens, dim, generator=random)
        terms = RelativeTerms(bias=torch.randn(heads, 9, generator=random))
        terms = terms if module is None else module(terms, query)
        # Every token is seen with those before it.
        mask = AttentionMask(tokens, 20, query_offset=20 - tokens, causal=True)
        key = torch.randn(1, heads, 20, dim, generator=random)
        with torch.no_grad():
            case = records.Case(query, key, key, terms, mask)
            taken[tokens] = name == "auto" or ENGINES[name].refuses(case) is None
            if taken[tokens]:
                made = attend(query, key, key, terms, mask, scale=0.5, engine=name)[0]
                torch.testing.assert_close(made, attend(query, key, key, terms, mask, scale=0.5, engine="eager")[0])
    assert taken[1] or not taken[20]


def test_every_engine_can_be_asked_for_by_name():
    for name in set(CHOICES) - {"auto"}:
        assert chosen(name, 8) == name


def test_every_engine_that_takes_all_either_holds_all_scores_or_is_tested_in_small_blocks():
    assert {name for name in TAKE_ALL if not SMALL_BLOCKS[name]} == QUADRATIC


# Masks that do not fit


def refused(**mask: Any) -> str:
    case = make_case(keys=9)
    t = case.tensors
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the callers look at the message
        attend(
            t["q"], t["k"], t["v"], case.terms(t), AttentionMask(**{"query_length": 7, "key_length": 9, **mask}),
            scale=1.0,
        )  # fmt: skip
    return str(refusal.value)


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        ({"key_length": 8}, ("7 queries and 8 keys", "7 queries and 9 keys")),
        ({"query_length": 6}, ("6 queries and 9 keys", "7 queries and 9 keys")),
        ({"padding": torch.ones(2, 8, dtype=torch.bool)}, ("[2, 8]", "[2, 9]")),
        ({"padding": torch.ones(3, 9, dtype=torch.bool)}, ("[3, 9]", "[2, 9]")),
        ({"dense": torch.zeros(2, 4, 7, 8)}, ("[2, 4, 7, 8]", "7, 9]")),
        ({"dense": torch.zeros(2, 3, 7, 9)}, ("[2, 3, 7, 9]", "1 or 4")),
        ({"dense": torch.zeros(7, 9)}, ("[7, 9]", "4-D")),
    ],
)
def test_a_mask_of_a_wrong_shape_is_refused_with_both_shapes(mask: dict[str, Any], named: tuple[str, ...]):
    message = refused(**mask)
    for part in named:
        assert part in message
