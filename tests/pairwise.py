"""All-pairs choice: of a grid, so few rows that every two values of different axes still meet in one of them.

Most faults need one value, nearly all others two that meet (Kuhn, Wallace, Gallo 2004, "Software Fault Interactions and
Implications for Software Testing"). A test with the mark that :func:`pairs` makes runs on such rows; ``pytest -m grid``
runs it on those left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import pytest

Row = tuple[Any, ...]
# One or two places of a row with their values.
Part = tuple[tuple[int, Any], ...]


def pairs(*, apart: Collection[str] = (), possible: Callable[..., bool] | None = None, **axes: Sequence[Any]) -> Any:
    """Run a test on rows in which every two values of different axes meet.

    Args:
        apart: names of axes whose values need not meet each other, because what they choose does not.
        possible: given a row's values in order; False for a row that there is no sense in.
        axes: the values (hashable) of each of the test's arguments.
    """
    return pytest.mark.pairs(axes, frozenset(apart), possible)


def rows_of(mark: pytest.Mark, with_grid: bool) -> tuple[tuple[str, ...], list[Any]]:
    """The names of the arguments of a test with that mark, and its rows.

    With the grid there are more, marked so: all rows, or, where axes are kept apart, those in which they too meet.
    """
    axes, apart, possible = mark.args
    rows = _grid(tuple(map(tuple, axes.values())), possible)
    chosen = _covering(rows, frozenset(place for place, name in enumerate(axes) if name in apart))
    whole = _covering(rows, frozenset()) if apart else rows
    others = [pytest.param(*row, marks=pytest.mark.grid) for row in whole if with_grid and row not in chosen]
    return tuple(axes), [*chosen, *others]


@cache
def _grid(axes: tuple[Row, ...], possible: Callable[..., bool] | None) -> tuple[Row, ...]:
    return tuple(row for row in itertools.product(*axes) if possible is None or possible(*row))


def _parts_of(row: Row, apart: frozenset[int]) -> list[Part]:
    """What a row covers: each of its values, and each pair of them but those that are kept apart."""
    both = itertools.combinations(enumerate(row), 2)
    return [*((one,) for one in enumerate(row)), *(pair for pair in both if not {pair[0][0], pair[1][0]} <= apart)]


@cache
def _covering(rows: tuple[Row, ...], apart: frozenset[int]) -> tuple[Row, ...]:
    """Some of the rows, in which all that any row covers is covered."""
    parts_of = {row: _parts_of(row, apart) for row in rows}
    rows_with: dict[Part, list[Row]] = {}
    for row, parts in parts_of.items():
        for part in parts:
            rows_with.setdefault(part, []).append(row)
    missing = dict.fromkeys(rows_with)
    chosen = []
    while missing:
        # Among the rows with the first of them, that with most of the others.
        best = max(rows_with[next(iter(missing))], key=lambda row: sum(part in missing for part in parts_of[row]))
        chosen.append(best)
        for part in parts_of[best]:
            missing.pop(part, None)
    return tuple(chosen)
