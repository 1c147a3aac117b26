"""Contestants take turns, so that a machine that changes its pace changes it for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

LEAST_ROUNDS = 3


def timed(work: Callable[[], object], device: torch.device) -> float:
    """The seconds that some work takes, on an accelerator until it is really done."""
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def take_turns(runs: Mapping[str, Callable[[], float]], seconds: float, warm_up: bool = True) -> dict[str, list[float]]:
    """Times of each contestant, in rounds until the seconds are over, at least ``LEAST_ROUNDS``.

    Args:
        runs: each does its work once and returns the seconds it took.
        seconds: how long the rounds go on.
        warm_up: whether each runs once before, unmeasured.
    """
    if warm_up:
        for run in runs.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while runs and (time.perf_counter() < end or min(map(len, times.values())) < LEAST_ROUNDS):
        for name, run in runs.items():
            times[name].append(run())
    return times


def summary(times: Mapping[str, list[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """Per contestant: rounds, median seconds, and the ratio of the median to that of the baseline."""
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        name: {
            "rounds": len(times[name]),
            "seconds": float(f"{median:.4g}"),
            "ratio": round(median / medians[baseline], 3),
        }
        for name, median in medians.items()
    }


def _nothing() -> None:
    pass
