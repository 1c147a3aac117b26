"""Gates start at exactly 1, act on the heads and tokens they should, and leave the native bias alone."""

from __future__ import annotations

import pytest
import torch
from cases import CHOICES

from hf_relpos import RelPosConfig, Shaw, T5Bias
from hf_relpos.engines import attend
from hf_relpos.gates import GATES, HeadGate, TokenGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import AttentionCall, AttentionGeometry
from hf_relpos.terms import RelativeTerms

GEOMETRY = AttentionGeometry(num_heads=3, head_dim=4, causal=False)
LEARNED = [name for name, gate in GATES.items() if gate is not None]


def layer(gate: str) -> RelPosLayer:
    """A layer whose tables are filled, so that a gate has something to act on."""
    built = RelPosLayer(RelPosConfig([Shaw(2), T5Bias(8, 10)], gate=gate), GEOMETRY)
    for parameter in built.schemes.parameters():
        torch.nn.init.normal_(parameter)
    return built


def call(query: torch.Tensor) -> AttentionCall:
    return AttentionCall(query, query, query, AttentionMask(query.shape[2], query.shape[2]))


def output(terms: RelativeTerms, query: torch.Tensor) -> torch.Tensor:
    mask = AttentionMask(query.shape[2], query.shape[2])
    return attend(query, query, query, terms, mask, scale=0.5)[0]


@pytest.mark.core
@pytest.mark.parametrize("gate", LEARNED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fresh_gate_is_exactly_one(gate: str, dtype: torch.dtype):
    query = torch.randn(2, 3, 5, 4).to(dtype)
    gated = layer(gate).to(dtype)
    terms = gated(call(query)).terms
    open_terms = gated.schemes[0].tables(0, query) + gated.schemes[1].tables(0, query)
    for name in ("bias", "query", "value"):
        table, plain = getattr(terms, name), getattr(open_terms, name)
        assert torch.equal(table, plain.expand_as(table))
    assert terms.gate is None or (terms.gate == 1).all()
    assert torch.equal(output(terms, query), output(open_terms, query))


@pytest.mark.core
@pytest.mark.parametrize("gate", LEARNED)
def test_every_gate_parameter_has_a_gradient_and_an_effect(gate: str):
    gated = layer(gate)
    query = torch.randn(2, 3, 5, 4)
    before = output(gated(call(query)).terms, query)
    before.square().sum().backward()
    for name, parameter in gated.gate.named_parameters():
        assert (parameter.grad != 0).all(), name
        with torch.no_grad():
            parameter += torch.randn_like(parameter)
            assert (output(gated(call(query)).terms, query) - before).abs().max() > 1e-3, name


@pytest.mark.parametrize("gate", LEARNED)
def test_no_gate_touches_the_native_bias(gate: str):
    gated = layer(gate)
    for parameter in gated.gate.parameters():
        torch.nn.init.constant_(parameter, 0.0 if gate == "head" else -100.0)
    query = torch.randn(2, 3, 5, 4)
    native = torch.randn(3, 7)
    expected = output(RelativeTerms(native_bias=native), query)
    if gate == "token":
        torch.nn.init.zeros_(gated.gate.weight)  # leaves the bias: a closed gate whatever the query
    torch.testing.assert_close(output(gated(call(query), native).terms, query), expected)


def test_a_head_gate_of_zero_closes_that_head_alone():
    gated = layer("head")
    query = torch.randn(2, 3, 5, 4)
    opened = output(gated(call(query)).terms, query)
    with torch.no_grad():
        gated.gate.weight[1] = 0.0
    closed = output(gated(call(query)).terms, query)
    plain = output(RelativeTerms(), query)
    torch.testing.assert_close(closed[:, 1], plain[:, 1])
    torch.testing.assert_close(closed[:, [0, 2]], opened[:, [0, 2]])


def test_a_token_gate_is_computed_from_each_query_and_bounded():
    gate = TokenGate(GEOMETRY)
    torch.nn.init.normal_(gate.weight)
    torch.nn.init.normal_(gate.bias)
    query = torch.randn(2, 3, 5, 4)
    factors = gate(RelativeTerms(bias=torch.zeros(3, 3)), query).gate
    for b in range(2):
        for h in range(3):
            for i in range(5):
                expected = 2 / (1 + torch.exp(-(query[b, h, i] @ gate.weight[h] + gate.bias[h])))
                torch.testing.assert_close(factors[b, h, i], expected)
    extreme = gate(RelativeTerms(bias=torch.zeros(3, 3)), 1e4 * query).gate
    assert ((extreme >= 0) & (extreme <= 2)).all()


def test_no_gate_means_no_gate_parameters():
    assert not [name for name, _ in layer("none").named_parameters() if name.startswith("gate")]


@pytest.mark.parametrize(
    ("gate", "shapes"), [(HeadGate, {"weight": (3,)}), (TokenGate, {"weight": (3, 4), "bias": (3,)})]
)
def test_gates_have_the_documented_shapes(gate: type, shapes: dict[str, tuple[int, ...]]):
    assert {name: tuple(parameter.shape) for name, parameter in gate(GEOMETRY).named_parameters()} == shapes


def test_an_inactive_layer_has_no_parameters_and_passes_the_native_bias_on():
    inactive = RelPosLayer(RelPosConfig("shaw"), GEOMETRY, active=False)
    assert not list(inactive.parameters())
    native = torch.randn(3, 5)
    query = torch.randn(1, 3, 2, 4)
    terms = inactive(call(query), native).terms
    assert terms.native_bias is native
    assert inactive(call(query)).terms.is_empty


@pytest.mark.parametrize("engine", CHOICES)
def test_a_head_gate_acts_on_one_query_as_on_many(engine: str):
    gate = HeadGate(AttentionGeometry(num_heads=2, head_dim=4, causal=True)).double()
    torch.nn.init.normal_(gate.weight)
    tables = {"bias": (2, 7), "query": (1, 7, 4), "value": (2, 7, 4), "native_bias": (2, 7)}
    terms = RelativeTerms(**{name: torch.randn(shape, dtype=torch.float64) for name, shape in tables.items()})
    query, key, value = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    last = query[:, :, -1:]
    many, _ = attend(query, key, value, gate(terms, query), AttentionMask(5, 5, causal=True), scale=0.5)
    mask = AttentionMask(1, 5, query_offset=4, causal=True)
    one, _ = attend(last, key, value, gate(terms, last), mask, scale=0.5, engine=engine)
    torch.testing.assert_close(one, many[:, :, -1:])
