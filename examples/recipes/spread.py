"""Numbers over the seeds, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from benchmarks.parts import Part
from hf_relpos.comparing.record import Spread


def over_seeds(parts: Iterable[Part], job: str, name: str, shown: str, setting: str | None = None) -> str:
    """A number of a job as mean and standard deviation over its seeds.

    Args:
        parts: finished runs.
        job: whose.
        name: of the number.
        shown: its format.
        setting: of the row that holds it, where a run has several.
    """
    rows = [row for made in parts if made["of"]["job"] == job for row in made["results"]]
    spread = Spread.of([row[name] for row in rows if setting in (None, row.get("setting"))])
    mean = shown.format(spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {shown.format(spread.deviation)}"


def jobs_of(parts: Iterable[Part]) -> list[str]:
    """The jobs, each once."""
    return list(dict.fromkeys(made["of"]["job"] for made in parts))


def seeds_of(parts: Iterable[Part]) -> str:
    """How many seeds the jobs have, in words."""
    counts = Counter(made["of"]["job"] for made in parts).values()
    fewest, most = min(counts), max(counts)
    if fewest < most:
        return f"{fewest} to {most} seeds, as not all runs are done"
    return f"{most} seeds" if most > 1 else "one seed"
