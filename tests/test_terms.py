"""The record between schemes and engines: tables widen, add and scale without changing what they mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_relpos.terms import RelativeTerms, add_tables, horizon, widen

TABLES = ("bias", "query", "key", "value")


def at(table: Tensor, offset: int, dim: int = 1) -> Tensor:
    """What a table says of an offset."""
    k = table.shape[dim] // 2
    return table.select(dim, max(-k, min(k, offset)) + k)


def some_terms(k: int = 2, heads: int = 3, dim: int = 4) -> RelativeTerms:
    return RelativeTerms(
        bias=torch.randn(heads, 2 * k + 1),
        query=torch.randn(1, 2 * k + 1, dim),
        key=torch.randn(heads, 2 * k + 1, dim),
        value=torch.randn(1, 2 * k + 1, dim),
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_wider_table_says_the_same_of_every_offset(dim: int):
    table = torch.randn(5, 5)
    wider = widen(table, 4, dim=dim)
    assert horizon(wider, dim) == 4
    for offset in range(-7, 8):
        assert torch.equal(at(wider, offset, dim), at(table, offset, dim))


def test_widening_to_the_same_horizon_is_free():
    table = torch.randn(3, 5)
    assert widen(table, 2) is table


def test_the_gradient_of_a_wider_table_reaches_its_edges():
    table = torch.randn(1, 3, requires_grad=True)
    widen(table, 4).sum().backward()
    assert table.grad.tolist() == [[4.0, 1.0, 4.0]]


@pytest.mark.core
@pytest.mark.parametrize(("first", "second"), [(2, 2), (1, 4), (5, 3)])
def test_the_sum_of_two_tables_is_the_sum_at_every_offset(first: int, second: int):
    one, other = torch.randn(1, 2 * first + 1, 4), torch.randn(3, 2 * second + 1, 4)
    total = add_tables(one, other)
    for offset in range(-8, 9):
        torch.testing.assert_close(at(total, offset), at(one, offset) + at(other, offset), rtol=0, atol=0)


def test_no_table_adds_nothing():
    table = torch.randn(3, 5)
    assert add_tables(None, table) is table
    assert add_tables(table, None) is table
    assert add_tables(None, None) is None


def test_terms_add_table_by_table():
    one, other = some_terms(k=2), RelativeTerms(bias=torch.randn(3, 9), native_bias=torch.randn(3, 3))
    total = one + other
    torch.testing.assert_close(total.bias, add_tables(one.bias, other.bias))
    assert total.query is one.query
    assert total.native_bias is other.native_bias


def test_gated_terms_are_not_added():
    gated = RelativeTerms(bias=torch.zeros(2, 3), gate=torch.ones(1, 2, 4))
    for sum_of in (lambda: gated + some_terms(), lambda: some_terms() + gated):
        with pytest.raises(ValueError, match="gate"):
            sum_of()


def test_a_factor_per_head_reaches_every_table_but_the_native_one():
    terms = some_terms().with_native_bias(torch.randn(3, 5))
    factor = torch.tensor([0.5, -1.0, 2.0])
    scaled = terms.scaled(factor)
    for name in TABLES:
        before, after = getattr(terms, name), getattr(scaled, name)
        for head in range(3):
            torch.testing.assert_close(after[head], before[head % before.shape[0]] * factor[head])
    assert scaled.native_bias is terms.native_bias


def test_native_biases_add_up():
    first, second = torch.randn(3, 5), torch.randn(3, 9)
    terms = RelativeTerms().with_native_bias(first).with_native_bias(second)
    torch.testing.assert_close(terms.native_bias, add_tables(first, second))


def test_only_terms_without_a_table_are_empty():
    assert RelativeTerms().is_empty
    assert RelativeTerms(gate=torch.ones(1, 2, 3)).is_empty
    for name in (*TABLES, "native_bias"):
        assert not RelativeTerms(**{name: torch.zeros(1, 3)}).is_empty


def test_a_change_of_dtype_reaches_every_tensor():
    terms = RelativeTerms(**{name: torch.zeros(1, 3) for name in (*TABLES, "gate", "native_bias")})
    for name in (*TABLES, "gate", "native_bias"):
        assert getattr(terms.to(torch.float64), name).dtype == torch.float64
    assert RelativeTerms().to(torch.float64).is_empty
