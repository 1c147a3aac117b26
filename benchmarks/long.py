"""Long inputs: ``python -m benchmarks.long``.

First, one training step at 16,384 tokens, whole and with ``window=256``: one layer, one sequence, each in a fresh
process. Second, attention alone at that length, without and with the window, in turns (Shaw's key and value vectors,
k = 16, 12 heads of 64, forward and backward). Third, the longest sequence whose attention, the same one, stays within a
memory budget: the gather/scatter form's is searched for, then whether the package still fits at a multiple of it. What
must hold: every step has a finite loss, attention with the window takes at most a sixth of the time, and the package
fits at 8 times the length.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import limits
from benchmarks.common import RESULTS, in_fresh_process, print_table
from benchmarks.memory import CHILD_ENVIRONMENT, status_mib
from benchmarks.parts import part, write_parts
from benchmarks.step_memory import MODULE as STEP

LENGTH, WINDOW = limits.LONG, 256
# Family, patch or None, window or None of each step.
STEPS: tuple[tuple[str, str | None, int | None], ...] = (
    ("bert", None, None),
    ("bert", "Shaw(16)", None),
    ("bert", "Shaw(16)", WINDOW),
    ("bert", "T5Bias()", None),
    ("gpt2", None, None),
    ("gpt2", "Shaw(16)", None),
    ("gpt2", "Shaw(16)", WINDOW),
    ("t5", "T5Bias(), native='drop'", None),
)
BUDGET_MIB, MULTIPLE = 1024, 8
# The search is this fine, and starts at this length.
GRAIN, START = 64, 256
GATHER, PACKAGE = "gather/scatter", "auto"


def train(length: int, threads: int) -> list[dict[str, Any]]:
    """One row per step."""
    rows = []
    for family, patch, window in STEPS:
        task = {"family": family, "patch": patch, "length": length, "layers": 1, "threads": threads, "window": window}
        rows.append({"family": family, "window": window, **in_fresh_process(STEP, task, CHILD_ENVIRONMENT)})
    return rows


def windowed(length: int, threads: int) -> list[dict[str, Any]]:
    """One row for attention to all tokens, one for that within the window."""
    import torch

    from benchmarks.problems import by_engine, make
    from benchmarks.rounds import summary, take_turns, timed

    torch.set_num_threads(threads)
    whole = make("Shaw(16)", length)
    problems = {"": whole, str(WINDOW): replace(whole, window=WINDOW)}

    def run(problem: Any) -> float:
        return timed(lambda: problem.backward(by_engine("auto", problem)), problem.device)

    times = take_turns({name: partial(run, problem) for name, problem in problems.items()}, 0, warm_up=False)
    return [{"window": int(name) if name else None, **row} for name, row in summary(times, "").items()]


def peak(form: str, length: int, threads: int) -> float:
    """MiB that the attention of one sequence takes on top of its inputs, in a fresh process."""
    return in_fresh_process("benchmarks.long", {"form": form, "length": length, "threads": threads}, CHILD_ENVIRONMENT)


def peak_here(form: str, length: int, threads: int) -> float:
    """The same for this process."""
    import torch

    from benchmarks.peers import PEERS
    from benchmarks.problems import make, solver

    torch.set_num_threads(threads)
    prepare = PEERS[form].prepare if form in PEERS else solver(form)

    def run(length: int) -> float:
        problem = make("Shaw(16)", length)
        work = prepare(problem)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        before = status_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        problem.backward(work())
        return status_mib("VmHWM") - before

    run(START)  # loads kernels, starts threads, checks the fused operator
    return run(length)


def longest(fits: Callable[[int], bool], start: int = START, grain: int = GRAIN) -> int:
    """The largest multiple of ``grain`` that fits, where everything shorter fits too; at least ``start``.

    Raises:
        ValueError: if ``start`` does not fit.
    """
    if not fits(start):
        raise ValueError(f"Even {start} tokens do not fit into the budget: give a larger one.")
    low, high = start, start * 2
    while fits(high):
        low, high = high, high * 2
    while high - low > grain:
        middle = (low + high) // (2 * grain) * grain
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def under_budget(budget: float, threads: int) -> list[dict[str, Any]]:
    """The gather/scatter form at its longest, and the package at ``MULTIPLE`` times that length."""
    most = longest(lambda length: peak(GATHER, length, threads) <= budget)
    rows = []
    for form, length in ((GATHER, most), (PACKAGE, most), (PACKAGE, MULTIPLE * most)):
        taken = peak(form, length, threads)
        rows.append({"form": form, "length": length, "peak_mib": round(taken, 1), "fits": taken <= budget})
    return rows


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("train", "window", "budget"), help="one of the three (default: all)")
    parser.add_argument("--length", type=int, default=LENGTH, help="of the training steps")
    parser.add_argument("--budget", type=float, default=BUDGET_MIB, help="MiB")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where long.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        print(json.dumps(peak_here(**json.loads(args.task))))
        return 0
    holds, made = True, []
    if args.only in (None, "train"):
        rows = train(args.length, args.threads)
        holds &= all(math.isfinite(row["loss"]) for row in rows)
        made.append(part({"what": "train", "length": args.length}, rows, threads=args.threads))
        cells = [[f"{row['family']}, {row['model']}", row["window"] or "", row["seconds"], row["added_mib"],
                  row["loss"]] for row in rows]  # fmt: skip
        print_table([[f"one layer, {args.length} tokens", "window", "seconds", "added MiB", "loss"], *cells])
    if args.only in (None, "window"):
        rows = windowed(args.length, args.threads)
        holds &= rows[-1]["ratio"] <= limits.WINDOWED
        made.append(part({"what": "window", "length": args.length}, rows, threads=args.threads))
        cells = [[row["window"] or "none", row["seconds"], row["ratio"]] for row in rows]
        print_table([[f"attention, {args.length} tokens, window", "seconds", "ratio"], *cells])
    if args.only in (None, "budget"):
        rows = under_budget(args.budget, args.threads)
        holds &= rows[-1]["fits"]
        made.append(part({"what": "budget", "budget_mib": args.budget}, rows, threads=args.threads))
        cells = [[row["form"], row["length"], row["peak_mib"], "yes" if row["fits"] else "no"] for row in rows]
        print_table([[f"{args.budget:g} MiB", "tokens", "peak MiB", "fits"], *cells])
    if not args.no_save:
        print(write_parts("long", made, args.output_dir))
    print(f"What must hold {'holds' if holds else 'DOES NOT HOLD'}.")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
