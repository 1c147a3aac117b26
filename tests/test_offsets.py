"""Tables over offsets become blocks of pairs and come back, wherever the block stands."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import offset_rows

from hf_relpos.engines.offsets import collect, spread

bounded = settings(max_examples=200, deadline=None, derandomize=True, database=None)
blocks = {
    "queries": st.integers(1, 9),
    "keys": st.integers(1, 12),
    "k": st.integers(1, 7),
    "first": st.integers(-25, 25),
    "on_device": st.booleans(),
}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.core
@bounded
@given(**blocks)
def test_spread_gives_each_pair_the_number_of_its_offset(queries: int, keys: int, k: int, first: int, on_device: bool):
    rows = normal(2, 3, queries, 2 * k + 1)
    pairs = spread(rows, keys, torch.tensor(first) if on_device else first)
    index = offset_rows(queries, keys, first, k)
    expected = torch.stack([rows[..., i, index[i]] for i in range(queries)], dim=-2)
    assert torch.equal(pairs, expected)


@pytest.mark.core
@bounded
@given(**blocks)
def test_collect_sums_the_numbers_at_each_offset(queries: int, keys: int, k: int, first: int, on_device: bool):
    pairs = normal(2, queries, keys)
    totals = collect(pairs, k, torch.tensor(first) if on_device else first)
    index = offset_rows(queries, keys, first, k)
    expected = torch.zeros(2, queries, 2 * k + 1, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            expected[:, i, index[i, j]] += pairs[:, i, j]
    torch.testing.assert_close(totals, expected, rtol=0, atol=1e-12)


@pytest.mark.core
@bounded
@given(**blocks)
def test_spread_and_collect_are_adjoint(queries: int, keys: int, k: int, first: int, on_device: bool):
    start = torch.tensor(first) if on_device else first
    rows, pairs = normal(queries, 2 * k + 1).requires_grad_(), normal(queries, keys).requires_grad_()
    spreading, collecting = spread(rows, keys, start), collect(pairs, k, start)
    torch.testing.assert_close((spreading * pairs).sum(), (rows * collecting).sum(), rtol=0, atol=1e-10)
    # so each is the other's backward pass
    (by_rows,) = torch.autograd.grad(spreading, rows, pairs.detach())
    (by_pairs,) = torch.autograd.grad(collecting, pairs, rows.detach())
    torch.testing.assert_close(by_rows, collecting.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(by_pairs, spreading.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [-1000, 1000])
@pytest.mark.parametrize("queries", [1, 4])
def test_a_block_beyond_the_table_reads_its_edge(first: int, queries: int):
    rows = normal(queries, 7)
    edge = rows[:, -1:] if first < 0 else rows[:, :1]  # keys far after the queries have large offsets
    assert torch.equal(spread(rows, 5, first), edge.expand(queries, 5))


def test_rows_that_all_queries_share_need_no_copy():
    table = normal(2, 1, 9)
    shared = spread(table.expand(2, 6, 9), 8, 1)
    assert torch.equal(shared, spread(table.repeat(1, 6, 1), 8, 1))
