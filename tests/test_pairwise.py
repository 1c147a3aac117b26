"""The rows that stand for a grid: every two values meet, in few rows, always the same ones."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairs, rows_of

AXES = {"shape": tuple("abcdef"), "colour": tuple("ABCDEFGH"), "size": (1, 2, 3), "weight": (10, 20, 30)}


def rows(with_grid: bool = False, **given):
    return rows_of(pairs(**given).mark, with_grid)[1]


def parts(chosen, *places):
    return {tuple(row[place] for place in places) for row in chosen}


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4), data=st.data())
def test_every_two_values_that_can_meet_do(sizes, data):
    axes = {f"axis{place}": range(size) for place, size in enumerate(sizes)}
    whole = list(itertools.product(*axes.values()))
    allowed = frozenset(data.draw(st.lists(st.sampled_from(whole), min_size=1)))
    chosen = rows(possible=lambda *row: row in allowed, **axes)
    assert set(chosen) <= allowed
    for places in itertools.combinations(range(len(sizes)), 2):
        assert parts(chosen, *places) == parts(allowed, *places)


def test_the_rows_are_few_each_once_and_always_the_same():
    chosen = rows(**AXES)
    assert len(chosen) <= 1.1 * 6 * 8  # 432 in all; no fewer than its two longest axes have pairs
    assert len(set(chosen)) == len(chosen)
    assert rows(**AXES) == chosen


def test_axes_kept_apart_meet_the_others_only_and_keep_all_their_values():
    chosen = rows(apart=("shape", "colour"), **AXES)
    assert len(chosen) <= 1.1 * 8 * 3
    for places in ((0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        assert parts(chosen, *places) == parts(itertools.product(*AXES.values()), *places)
    assert len(rows(apart=("shape", "size"), shape=AXES["shape"], size=AXES["size"])) == 6


def test_the_grid_is_every_row_and_those_left_out_are_marked():
    chosen, whole = rows(**AXES), rows(with_grid=True, **AXES)
    assert whole[: len(chosen)] == chosen
    left_out = whole[len(chosen) :]
    assert all([mark.name for mark in row.marks] == ["grid"] for row in left_out)
    assert sorted([*chosen, *(row.values for row in left_out)]) == sorted(itertools.product(*AXES.values()))


def test_the_grid_of_axes_kept_apart_is_where_they_meet():
    apart = {"apart": ("shape", "colour"), **AXES}
    chosen, more = rows(**apart), rows(with_grid=True, **apart)[len(rows(**apart)) :]
    met = parts([*chosen, *(row.values for row in more)], 0, 1)
    assert met == parts(itertools.product(*AXES.values()), 0, 1)
    assert len(more) <= len(rows(**AXES))


def test_axes_along_a_grid_meet_all_others_and_take_turns_in_the_grid():
    along = {"speed": (1, 2), "taste": ("sweet", "sour", "salt")}
    whole = rows(with_grid=True, along=along, **AXES)
    chosen = rows(along=along, **AXES)
    assert len(chosen) <= 1.1 * 6 * 8
    every = list(itertools.product(*AXES.values(), *along.values()))
    for places in itertools.combinations(range(6), 2):
        assert parts(chosen, *places) == parts(every, *places)
    others = [row.values for row in whole[len(chosen) :]]
    assert sorted({row[:4] for row in [*chosen, *others]}) == sorted(itertools.product(*AXES.values()))
    assert len(others) == 432 - len(chosen)
    turns = [sum(row[5] == taste for row in others) for taste in along["taste"]]
    assert max(turns) - min(turns) < 20
