"""The memory a training step adds, patched against unpatched: ``python -m benchmarks.step_memory``.

The models of `benchmarks.training_step`, one sequence, 4 layers. Each number comes from a fresh process, read as in
`benchmarks.memory`: the peak during the step less what the process held before it, so the model itself does not count,
and activations, gradients and everything in between do. A step's seconds are noted too, but were not taken in turn:
`benchmarks.training_step` compares times. Each family and length is a part of the results.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, in_fresh_process, print_table
from benchmarks.memory import CHILD_ENVIRONMENT, status_mib
from benchmarks.parts import part, write_parts

MODULE = "benchmarks.step_memory"
LENGTHS = (4096,)
LAYERS = 4
WARM_UP_LENGTH = 96


def measure(
    family: str, patch: str | None, length: int, layers: int, threads: int, window: int | None = None
) -> dict[str, Any]:
    """MiB that one step adds in this process, its seconds, and its loss. The patch None is no patch."""
    import torch

    from benchmarks.models import UNPATCHED, batch_of, patched, unpatched
    from benchmarks.rounds import timed

    torch.set_num_threads(threads)
    if patch is None:
        model = unpatched(family, length, layers=layers)
    else:
        model = patched(family, patch, length, layers=layers, window=window)
    warm_up = batch_of(family, min(length, WARM_UP_LENGTH), 1)
    model(**warm_up).loss.backward()  # loads kernels, starts threads
    model.zero_grad()
    batch = batch_of(family, length, 1)
    losses = []

    def step() -> None:
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    seconds = timed(step, torch.device("cpu"))
    return {
        "model": patch or UNPATCHED,
        "added_mib": round(status_mib("VmHWM") - before, 1),
        "seconds": round(seconds, 2),
        "loss": round(losses[0], 4),
    }


def compare(family: str, patches: list[str], length: int, layers: int, threads: int) -> list[dict[str, Any]]:
    """One row per model, each from a process of its own; the unpatched one first."""
    rows: list[dict[str, Any]] = []
    for patch in (None, *patches):
        task = {"family": family, "patch": patch, "length": length, "layers": layers, "threads": threads}
        row = in_fresh_process(MODULE, task, CHILD_ENVIRONMENT)
        base = rows[0] if rows else row
        rows.append({**row, "ratio": round(row["added_mib"] / base["added_mib"], 3)})
    return rows


def child(task: dict[str, Any]) -> Any:
    """One measurement; or, if that is the task, the patches of each family."""
    if task.get("list"):
        from benchmarks.models import PATCHES

        return {family: list(patches) for family, patches in PATCHES.items()}
    return measure(**task)


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", help="default: all")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where step_memory.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        print(json.dumps(child(json.loads(args.task))))
        return 0
    patches = in_fresh_process(MODULE, {"list": True})
    if unknown := set(args.families or ()) - set(patches):
        parser.error(f"--families: {', '.join(unknown)}; there are {', '.join(patches)}")
    for family in args.families or patches:
        for length in args.lengths:
            rows = compare(family, patches[family], length, args.layers, args.threads)
            title = f"{family}, {length} tokens, {args.layers} layers"
            cells = [[row["model"], f"{row['added_mib']:.0f}", f"{row['ratio']:.2f}", row["seconds"]] for row in rows]
            print_table([[title, "added MiB", "ratio", "seconds"], *cells])
            if not args.no_save:
                of = {"family": family, "length": length, "layers": args.layers}
                print(write_parts("step_memory", [part(of, rows, threads=args.threads)], args.output_dir), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
