"""All-pairs choice: of a grid, so few rows that every two values of different axes still meet in one of them.

Most faults need one value, nearly all others two that meet (Kuhn, Wallace, Gallo 2004, "Software Fault Interactions and
Implications for Software Testing"). A test with the mark that :func:`pairs` makes runs on such rows; ``pytest -m grid``
runs it on those left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

Row = tuple[Any, ...]
# Values at some places of a row.
Part = tuple[tuple[int, Any], ...]


def pairs(
    *,
    apart: Collection[str] = (),
    along: Mapping[str, Sequence[Any]] | None = None,
    possible: Callable[..., bool] | None = None,
    **axes: Sequence[Any],
) -> Any:
    """Run a test on rows in which every two values of different axes meet.

    Args:
        apart: names of axes whose values need not meet each other, because what they choose does not.
        along: more axes, which are no part of the grid: on its rows they take turns.
        possible: given a row's values in order; False for a row that there is no sense in.
        axes: the values (hashable) of each of the test's arguments.
    """
    return pytest.mark.pairs(axes, along or {}, frozenset(apart), possible)


def rows_of(mark: pytest.Mark, with_grid: bool) -> tuple[tuple[str, ...], list[Any]]:
    """The names of the arguments of a test with that mark, and its rows.

    With the grid there are more, marked so: all rows, or, where axes are kept apart, those in which they too meet.
    """
    axes, along, apart, possible = mark.args
    names = (*axes, *along)
    values = tuple(map(tuple, (*axes.values(), *along.values())))
    chosen = _covering(values, frozenset(names.index(name) for name in apart), possible)
    others: list[Row] = []
    if with_grid and apart:
        others = [row for row in _covering(values, frozenset(), possible) if row not in chosen]
    elif with_grid:
        there = {row[: len(axes)] for row in chosen}
        rows = _Rows(values, possible)
        grid = (rows.with_part(tuple(enumerate(row))) for row in itertools.product(*axes.values()) if row not in there)
        others = [row for row in grid if row is not None]
    return names, [*chosen, *(pytest.param(*row, marks=pytest.mark.grid) for row in others)]


def id_of(value: Any) -> str | None:
    """What a value is called in the name of a test's row, where pytest would number it: a short tuple as it is."""
    return str(value) if isinstance(value, tuple) and len(str(value)) < 30 else None


@cache
def _covering(values: tuple[Row, ...], apart: frozenset[int], possible: Callable[..., bool] | None) -> tuple[Row, ...]:
    """Rows in which each value is, and each pair of them but those that are kept apart."""
    places = itertools.combinations(range(len(values)), 2)
    meeting = [pair for pair in places if not apart.issuperset(pair)]
    rows = _Rows(values, possible, meeting)
    chosen = []
    while rows.missing:
        part = next(iter(rows.missing))
        row = rows.with_part(part)
        if row is None:
            del rows.missing[part]  # in no possible row
        else:
            chosen.append(row)
    return tuple(chosen)


class _Rows:
    """Makes rows one after the other, each with as much as it can have of what no other has had.

    Args:
        values: those of each place.
        possible: whether there may be a row.
        meeting: the pairs of places whose values are to meet.

    Attributes:
        missing: what no row has had so far.
    """

    def __init__(
        self,
        values: tuple[Row, ...],
        possible: Callable[..., bool] | None,
        meeting: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.values = values
        self.possible = possible
        self.used = Counter[Part]()
        self.missing: dict[Part, None] = {}
        for places in (*meeting, *((place,) for place in range(len(values)))):
            rows = itertools.product(*(values[place] for place in places))
            self.missing.update(dict.fromkeys(tuple(zip(places, row, strict=True)) for row in rows))

    def with_part(self, part: Part) -> Row | None:
        """A row with some values given; None if there is no possible one."""
        rows = self._with(dict(part))
        row = next((row for row in rows if self.possible is None or self.possible(*row)), None)
        if row is not None:
            for had in (*itertools.combinations(enumerate(row), 2), *((one,) for one in enumerate(row))):
                self.missing.pop(had, None)
                self.used[had] += 1
        return row

    def _with(self, given: dict[int, Any]) -> Iterator[Row]:
        """All rows with the values given, the best first."""
        place = next((place for place in range(len(self.values)) if place not in given), None)
        if place is None:
            yield tuple(given[place] for place in range(len(self.values)))
            return

        def worth(value: Any) -> tuple[int, int]:
            """How much it adds that is missing; then, how little it has been used beside the others."""
            here = (place, value)
            parts = [tuple(sorted((here, other), key=lambda one: one[0])) for other in given.items()]
            return sum(part in self.missing for part in parts), -sum(self.used[part] for part in [*parts, (here,)])

        for value in sorted(self.values[place], key=worth, reverse=True):
            yield from self._with({**given, place: value})
