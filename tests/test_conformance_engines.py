"""What every registered engine must do: take a case and compute what the reference computes, or refuse it in words.

A new engine enters by being registered; it needs a row in ``cases.SMALL_BLOCKS``.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import pytest
import reference
import torch
from cases import CHOICES, SMALL_BLOCKS, TERMS, Case, make_case
from pairwise import pairs
from torch import Tensor

from hf_relpos.engines import ENGINES, attend
from hf_relpos.engines.engine import Case as Asked

# Name -> arguments of `make_case`.
TERM_SETS: dict[str, dict[str, Any]] = {
    "none": {"terms": ()},
    "bias": {"terms": ("bias",)},
    "query": {"terms": ("query",)},
    "key": {"terms": ("key",)},
    "value": {"terms": ("value",)},
    "native bias": {"terms": ("native_bias",)},
    "biases": {"terms": ("bias", "native_bias")},
    "vectors": {"terms": ("query", "value")},
    "gated bias": {"terms": ("bias", "gate")},
    "gated vectors": {"terms": ("query", "value", "gate")},
    "all but keys": {"terms": ("bias", "query", "value", "gate", "native_bias")},
    "all": {},
    "gate, one for the batch": {"gate_batch": 1},
    "shared by the heads": {"shared": True},
    "different horizons": {"k": {"bias": 4, "query": 2, "key": 1, "value": 5, "native_bias": 3}},
    "horizon beyond the length": {"terms": ("bias", "query", "value"), "k": 40},
    "no horizon": {"terms": ("bias", "query", "value"), "k": 16},  # as wide as 17 keys: what a scheme without one gives
    "no horizon beside narrow tables": {"terms": ("bias", "query", "value"), "k": {"bias": 16, "query": 2, "value": 3}},
}
# Queries and keys.
SHAPES = ((1, 1), (1, 11), (5, 5), (7, 9), (17, 17), (9, 30))


def scattered(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) < 0.6


def ends(keys: int) -> Tensor:
    """Padding on the right in the first sequence, on the left in the second."""
    at = torch.arange(keys)
    return torch.stack([at < (keys + 1) // 2, at >= 2])


def documents(query_at: Tensor, key_at: Tensor) -> Tensor:
    """Documents of three tokens, packed into one row; of four in the second sequence."""
    size = torch.tensor([3, 4])[:, None, None, None]
    return query_at // size == key_at // size


PACKED = {"pattern": documents, "rule": lambda b, h, i, j: i // (3 + b) == j // (3 + b)}


def rules_of(mask: str, queries: int, keys: int) -> dict[str, Any]:
    """What is different about a problem under a mask; queries are the last of the keys unless it says otherwise."""
    last: dict[str, Any] = {"query_offset": keys - queries}
    return {
        "none": lambda: last,
        "causal": lambda: {**last, "rules": {"causal": True}},
        "causal, queries first": lambda: {"rules": {"causal": True}},
        "causal, queries before all keys": lambda: {"rules": {"causal": True}, "query_offset": -3},
        "causal, offset on the device": lambda: {**last, "rules": {"causal": True}, "tensor_offset": True},
        "far after the keys": lambda: {"query_offset": 70},
        "far before the keys": lambda: {"query_offset": -70},
        "no window": lambda: {**last, "rules": {"window": 0}},
        "window": lambda: {**last, "rules": {"window": 2}},
        "wide causal window": lambda: {**last, "rules": {"window": 12, "causal": True}},
        "window out of sight": lambda: {"rules": {"window": 1}, "query_offset": 70},
        "padding": lambda: {**last, "rules": {"padding": ends(keys)}},
        "causal padding in a window": lambda: {
            **last, "rules": {"padding": ends(keys), "causal": True, "window": 7},
        },
        "causal padding": lambda: {**last, "rules": {"padding": ends(keys), "causal": True}},
        "scattered padding": lambda: {**last, "rules": {"padding": scattered(2, keys)}},
        "packed": lambda: {**last, **PACKED},
        "dense": lambda: {**last, "rules": {"dense": scattered(2, 1, queries, keys)}},
        "one dense row for all queries": lambda: {**last, "rules": {"dense": scattered(2, 1, 1, keys)}},
        "everything": lambda: {
            **PACKED, "query_offset": 1, "tensor_offset": True,
            "rules": {"padding": ends(keys), "causal": True, "window": 2, "dense": scattered(2, 4, queries, keys)},
        },
    }[mask]()  # fmt: skip


MASKS = (
    *("none", "causal", "causal, queries first", "causal, queries before all keys", "causal, offset on the device"),
    *("far after the keys", "far before the keys", "no window", "window", "wide causal window", "window out of sight"),
    *("padding", "causal padding in a window", "causal padding", "scattered padding", "packed", "dense"),
    *("one dense row for all queries", "everything"),
)
AXES: dict[str, Any] = {
    "engine": tuple(ENGINES),
    "terms": tuple(TERM_SETS),
    "mask": MASKS,
    "shape": SHAPES,
    "learns": ("all", "all but the tables"),
    "value_dim": (5, 3),
}


@cache
def case_of(terms: str, mask: str, shape: tuple[int, int], value_dim: int, key_heads: int = 4) -> Case:
    queries, keys = shape
    return make_case(
        queries=queries, keys=keys, value_dim=value_dim, key_heads=key_heads,
        **TERM_SETS[terms], **rules_of(mask, queries, keys),
    )  # fmt: skip


@cache
def asked(terms: str, mask: str, shape: tuple[int, int], learns: str, value_dim: int) -> Asked:
    """The case as engines are asked about it."""
    case = case_of(terms, mask, shape, value_dim)
    tables = {name: tensor.detach().requires_grad_(learns == "all") for name, tensor in case.tensors.items()}
    return Asked(tables["q"], tables["k"], tables["v"], case.terms(tables), case.mask(tables))


def solved(case: Case, by: Any, learns: str) -> dict[str, Tensor]:
    """The output and the gradients of what learns."""
    states = {name: tensor for name, tensor in case.tensors.items() if learns == "all" or name not in TERMS}
    return reference.output_and_gradients(lambda leaves: by({**case.tensors, **leaves}), states)


@cache
def expected(
    terms: str, mask: str, shape: tuple[int, int], value_dim: int, key_heads: int, learns: str
) -> dict[str, Tensor]:
    """What the reference computes."""
    case = case_of(terms, mask, shape, value_dim, key_heads)
    return solved(case, case.by_reference, learns)


def takes(engine: str, terms: str, mask: str, shape: tuple[int, int], learns: str, value_dim: int, *_: Any) -> bool:
    return ENGINES[engine].refuses(asked(terms, mask, shape, learns, value_dim)) is None


def test_every_registered_engine_takes_part():
    for name in ENGINES:
        assert name in SMALL_BLOCKS, f"The engine {name!r} is registered, but the tests do not know its blocks: "
        "give it a row in cases.SMALL_BLOCKS, an empty one if it has none."


@pytest.mark.core
@pairs(**AXES, key_heads=(4, 2, 1), blocks=("small", "its own"), possible=takes)
def test_output_and_gradients_equal_the_reference(
    engine, terms, mask, shape, learns, value_dim, key_heads, blocks, monkeypatch
):
    for constant, value in SMALL_BLOCKS[engine].items():
        if blocks == "small":
            monkeypatch.setattr(constant, value)
    case = case_of(terms, mask, shape, value_dim, key_heads)
    actual = solved(case, lambda tensors: case.by(engine, tensors), learns)
    reference.assert_all_close(actual, expected(terms, mask, shape, value_dim, key_heads, learns), 1e-10)


@pytest.mark.parametrize("engine", ["plain", *(name for name in CHOICES if name != "auto")])
def test_what_an_engine_cannot_take_it_refuses_in_words(engine):
    rows = list(itertools.product(TERM_SETS, MASKS, [(7, 9), (1, 11)], AXES["learns"], AXES["value_dim"]))
    refused = [row for row in rows if not takes(engine, *row)]
    assert len(refused) < len(rows), f"{engine} takes nothing"
    for row in refused:
        question = asked(*row)
        refusal = ENGINES[engine].refuses(question)
        assert refusal == refusal.strip(" .")
        if not ENGINES[engine].is_choice or question.is_plain:
            continue  # nobody asks for it; without terms all but one leave it to PyTorch's own operator
        with pytest.raises(ValueError, match=rf"'{engine}' cannot take {re.escape(refusal)}\. Use engine='auto'"):
            attend(
                question.query, question.key, question.value, question.terms, question.mask, scale=1.0, engine=engine
            )
