"""How much memory each engine needs on top of its inputs, by length: ``python -m benchmarks.memory``.

Shaw's key and value vectors (k = 16) with 12 heads of 64 and one sequence,
forward alone and with the backward pass, against PyTorch's fused attention without positions. What must hold: with
``blockwise``, doubling the length from 2048 to 4096 raises the peak by less than 2.3 times.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, in_fresh_process, print_table, write_results

HEADS, HEAD_DIM, BATCH, CLIP = 12, 64, 1, 16
LENGTHS = (512, 1024, 2048, 4096, 8192)
PASSES = ("forward", "forward and backward")
PLAIN = "plain"

# What must hold.
LINEAR_ENGINE, SHORT, LONG, MOST_GROWTH = "blockwise", 2048, 4096, 2.3

# An engine that holds all scores has about so many tensors of their size at its peak.
SCORE_TENSORS = 11
QUADRATIC = ("eager",)

METHOD = (
    "Each number comes from a fresh process. It makes the inputs, runs a short warm-up, and reads its resident "
    "memory (VmRSS in /proc/self/status); then it resets the kernel's high-water mark (5 to "
    "/proc/self/clear_refs), runs once, and reads the mark (VmHWM). The difference counts everything that is "
    "neither input nor program: intermediate tensors, the output, the gradients. MALLOC_MMAP_THRESHOLD_ and "
    "MALLOC_TRIM_THRESHOLD_ are 64 KiB, so that freed tensors leave the process at once."
)
CHILD_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def status_mib(field: str) -> float:
    """One entry of the process's memory status, in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux")


def measure(engine: str, length: int, direction: str, threads: int) -> float:
    """The peak over the inputs in MiB, for this process."""
    import torch

    torch.set_num_threads(threads)
    run = attention(engine, backward=direction != PASSES[0])
    run(*inputs(96))  # loads kernels, starts threads
    tensors = inputs(length)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    run(*tensors)
    return status_mib("VmHWM") - before


def inputs(length: int) -> tuple[Any, ...]:
    """Queries, keys, values, and Shaw's two tables."""
    import torch

    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(BATCH, HEADS, length, HEAD_DIM, generator=generator) for _ in range(3)]
    tables = [torch.randn(1, 2 * CLIP + 1, HEAD_DIM, generator=generator) for _ in range(2)]
    return tuple(tensor.requires_grad_() for tensor in (*states, *tables))


def attention(engine: str, backward: bool) -> Callable[..., None]:
    """One pass of an engine."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from hf_relpos.engines import attend
    from hf_relpos.masks import AttentionMask
    from hf_relpos.terms import RelativeTerms

    def run(query: Any, key: Any, value: Any, key_table: Any, value_table: Any) -> None:
        with torch.set_grad_enabled(backward):
            if engine == PLAIN:
                output = scaled_dot_product_attention(query, key, value)
            else:
                terms = RelativeTerms(query=key_table, value=value_table)
                mask = AttentionMask(query.shape[2], key.shape[2])
                output, _ = attend(query, key, value, terms, mask, scale=HEAD_DIM**-0.5, engine=engine)
        if backward:
            output.backward(torch.ones_like(output))

    return run


def fits(engine: str, length: int) -> bool:
    """Whether half of the free memory is enough for an engine that holds all scores."""
    if engine not in QUADRATIC:
        return True
    need = SCORE_TENSORS * 4 * BATCH * HEADS * length**2
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return need <= int(line.split()[1]) * 1024 / 2
    raise RuntimeError("/proc/meminfo has no MemAvailable: this benchmark needs Linux")


def engine_names() -> list[str]:
    """The engines there are, asked for in a process of their own."""
    return in_fresh_process("benchmarks.memory", {"list": True})


def growth(peaks: dict[int, float | None]) -> float | None:
    """How many times the peak of ``SHORT`` the peak of ``LONG`` is."""
    short, long = peaks.get(SHORT), peaks.get(LONG)
    return None if short is None or long is None else long / short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="sequence lengths")
    parser.add_argument("--engines", nargs="+", help="the engines to measure (default: all, and plain attention)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where memory.json goes")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        return child(json.loads(options.task))

    engines = options.engines or [PLAIN, *engine_names()]
    results: list[dict[str, Any]] = []
    growths: dict[str, dict[str, float | None]] = {}
    for direction in PASSES:
        rows = [[direction, *(f"L={length}" for length in options.lengths), f"{SHORT} to {LONG}"]]
        for engine in engines:
            peaks: dict[int, float | None] = {}
            for length in options.lengths:
                peaks[length] = None
                if fits(engine, length):
                    task = {"engine": engine, "length": length, "direction": direction, "threads": options.threads}
                    peaks[length] = in_fresh_process("benchmarks.memory", task, CHILD_ENVIRONMENT)
                results.append({"engine": engine, "pass": direction, "length": length, "peak_mib": peaks[length]})
            times = growth(peaks)
            growths.setdefault(engine, {})[direction] = None if times is None else round(times, 3)
            cells = ["not enough memory" if peak is None else f"{peak:.1f}" for peak in peaks.values()]
            rows.append([engine, *cells, "" if times is None else f"{times:.2f}x"])
        print("\nPeak memory over the inputs, MiB")
        print_table(rows)

    measured = [times for times in growths.get(LINEAR_ENGINE, {}).values() if times is not None]
    # None: the two lengths were not both asked for.
    holds = max(measured) < MOST_GROWTH if len(measured) == len(PASSES) else None
    path = write_results(
        "memory",
        {
            "method": METHOD,
            "settings": {
                "batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM, "scheme": f"Shaw, k = {CLIP}",
                "dtype": "float32", "threads": options.threads,
            },
            "results": results,
            f"growth_{SHORT}_to_{LONG}": growths,
            "requirement": {
                "text": f"{LINEAR_ENGINE}: {SHORT} to {LONG} raises the peak by less than {MOST_GROWTH} times",
                "holds": holds,
            },
        },
        options.output_dir,
    )  # fmt: skip
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "was not measured"}[holds]
    print(f"\nThe requirement on {LINEAR_ENGINE} {verdict}. Written to {path}")
    return 1 if holds is False else 0


def child(task: dict[str, Any]) -> int:
    """Do one measurement and print it."""
    if task.get("list"):
        from hf_relpos.names import ENGINE_NAMES

        print(json.dumps([name for name in ENGINE_NAMES if name != "auto"]))
    else:
        print(json.dumps(round(measure(**task), 2)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
