"""A key that is hidden stays hidden whatever numbers it has; one that is seen and not finite shows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import CHOICES
from torch import Tensor

from hf_relpos.engines import attend
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

TOKENS, BROKEN = 150, 140
PADDING = torch.ones(2, TOKENS, dtype=torch.bool)
PADDING[0, 120:] = False
DENSE = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
DENSE[..., :100, BROKEN] = False
# Name -> the mask, and which queries of the two sequences see the broken key.
MASKS: dict[str, tuple[dict[str, Any], Tensor]] = {
    "padding": ({"padding": PADDING}, PADDING[:, BROKEN, None].expand(2, TOKENS)),
    "future": ({"causal": True}, (torch.arange(TOKENS) >= BROKEN).expand(2, -1)),
    "window": ({"window": 20}, ((torch.arange(TOKENS) - BROKEN).abs() <= 20).expand(2, -1)),
    "pattern": (
        {"pattern": lambda i, j: ((i < 130) == (j < 130))[None, None]},
        (torch.arange(TOKENS) >= 130).expand(2, -1),
    ),
    "bool mask": ({"dense": DENSE}, DENSE[0, :, :, BROKEN].expand(2, -1)),
    "added mask": (
        {"dense": torch.zeros(DENSE.shape, dtype=torch.float64).masked_fill(~DENSE, -math.inf)},
        DENSE[0, :, :, BROKEN].expand(2, -1),
    ),
    "unfilled cache": (
        {"causal": True, "query_offset": torch.tensor(-20)},
        torch.zeros(2, TOKENS, dtype=torch.bool),
    ),
}  # fmt: skip
OF_FUSED = ("padding", "future", "window")
CASES = [
    (engine, mask)
    for engine in ("plain", *CHOICES)
    for mask in MASKS
    if engine != "auto" and (engine != "fused" or mask in OF_FUSED)
]


def inputs(engine: str) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys(("query", "key", "value"), (2, 2, TOKENS, 4))
    if engine != "plain":
        shapes |= {"bias": (2, 9), "to query": (2, 7, 4), "to value": (2, 7, 4)}
    return {name: torch.randn(*shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}


def run(engine: str, tensors: dict[str, Tensor], **rules: Any) -> Tensor:
    terms = RelativeTerms(
        bias=tensors.get("bias"), query=tensors.get("to query"), value=tensors.get("to value")
    )  # fmt: skip
    return attend(
        tensors["query"], tensors["key"], tensors["value"], terms, AttentionMask(TOKENS, TOKENS, **rules), scale=0.5,
        engine="auto" if engine == "plain" else engine,
    )[0]  # fmt: skip


@pytest.mark.core
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("broken", ["key", "value"])
@pytest.mark.parametrize(("engine", "mask"), CASES)
def test_what_is_not_finite_and_hidden_changes_no_output_and_no_gradient(
    engine: str, mask: str, broken: str, number: float
):
    rules, sees = MASKS[mask]
    results = []
    for filler in (0.0, number):
        tensors = inputs(engine)
        tensors[broken][:, 1, BROKEN, 2] = filler
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        output = run(engine, leaves, **rules)
        others = output.transpose(1, 2)[~sees]
        others.square().sum().backward()
        results.append((others, {name: leaf.grad for name, leaf in leaves.items()}))
        with torch.no_grad():
            torch.testing.assert_close(run(engine, tensors, **rules), output, equal_nan=True)
    assert not output[:, 1][sees].isfinite().any() or engine == "plain" or not sees.any()
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=1e-12)
    for name, gradient in results[1][1].items():
        expected = results[0][1][name]
        if name in ("key", "value"):  # where a number is exchanged, so is its gradient
            gradient, expected = gradient.clone(), expected.clone()
            gradient[:, 1, BROKEN] = expected[:, 1, BROKEN] = 0.0
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", CHOICES)
def test_one_query_after_padded_keys_that_are_not_finite(engine: str):
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 2, length, 4, generator=random) for length in (1, 9, 9))
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :3] = False
    mask, terms = (
        AttentionMask(1, 9, query_offset=8, causal=True, padding=padding),
        RelativeTerms(bias=torch.randn(2, 5)),
    )
    expected = attend(query, key, value, terms, mask, scale=0.5, engine=engine)[0]
    key[1, :, :3], value[1, :, 1] = math.nan, math.inf
    torch.testing.assert_close(attend(query, key, value, terms, mask, scale=0.5, engine=engine)[0], expected)


def test_query_heads_that_share_keys_each_learn_what_they_see():
    random = torch.Generator().manual_seed(1)
    query, key = torch.randn(1, 4, 6, 3, generator=random), torch.randn(1, 2, 6, 3, generator=random)
    key[0, 1, 5, 0] = math.nan
    output = attend(query, key, key, RelativeTerms(), AttentionMask(6, 6, causal=True), scale=0.5)[0]
    assert output.isfinite().all(-1).tolist() == [[[True] * 6] * 2 + [[True] * 5 + [False]] * 2]


def test_weights_of_a_query_that_sees_it_are_lost_and_no_others():
    query = torch.randn(1, 1, 6, 3, generator=torch.Generator().manual_seed(1))
    key = query.clone()
    key[..., 5, 0] = math.nan
    mask = AttentionMask(6, 6, causal=True)
    output, weights = attend(query, key, query, RelativeTerms(bias=torch.ones(1, 3)), mask, scale=0.5, weights=True)
    for states in (output, weights):
        assert states is not None
        assert states.isfinite().all(-1).tolist() == [[[True] * 5 + [False]]]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_padding_stays_hidden_where_numbers_cannot_be_looked_at(broken: float):
    tensors = inputs("eager")
    expected = run("eager", tensors, padding=PADDING)
    for name in ("key", "value"):
        tensors[name][0, :, BROKEN] = broken

    def loss(query: Tensor) -> Tensor:
        return run("auto", {**tensors, "query": query}, padding=PADDING).square().sum()

    gradient, value = torch.func.grad_and_value(loss)(tensors["query"])
    torch.testing.assert_close(value, expected.square().sum())
    assert gradient.isfinite().all()


def test_numbers_so_large_that_their_sum_overflows_are_finite():
    tensors = {name: tensor.float() for name, tensor in inputs("eager").items()}
    tensors["value"][:, :, :4] = 3e38
    output = run("eager", tensors, causal=True)
    assert torch.equal(output.isfinite(), run("eager", tensors, dense=DENSE.new_ones(DENSE.shape).tril()).isfinite())
    assert output.isfinite().any()
