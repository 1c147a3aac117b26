"""Everything worth knowing on a machine with a GPU, in under five minutes: ``python -m benchmarks.gpu_check``.

First every engine against `eager`, outputs and all gradients, over dtypes, terms and masks; `fused` must also give the
same bits in a second run. Then the tables of `benchmarks.attention` and `benchmarks.training_step` on the GPU. What no
longer fits into the time, compiling included, is left out, and the script says so. Each table is a part of the results.
``--device cpu --quick`` runs the same on small problems, to try the script itself, and keeps nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import attention, training_step
from benchmarks.common import RESULTS, print_table
from benchmarks.models import PATCHES
from benchmarks.parts import Part, part, with_gpu, write_parts
from hf_relpos.engines import ENGINES, attend
from hf_relpos.engines.engine import Case
from hf_relpos.masks import AttentionMask
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.terms import RelativeTerms

SECONDS = 240  # a table that has begun ends later
DTYPES = (
    torch.bfloat16,
    torch.float32,
    torch.float16,
    torch.float64,
)  # the first are the likeliest to fit into the time
# Error of `eager` itself in the dtype, relative to the largest number; low precision rounds the inputs and the result.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.004}

BATCH, HEADS, KEY_HEADS, DIM = 2, 4, 2, 32
# Queries, keys: odd ones, one, and more keys than queries.
SHAPES = ((129, 129), (1, 1), (1, 70), (37, 300), (520, 520))
QUICK_SHAPES = ((13, 13), (1, 9), (5, 40))
CLIP = 5
TERMS: dict[str, tuple[str, ...]] = {
    "bias": ("bias",),
    "query": ("query",),
    "value": ("value",),
    "query, value": ("query", "value"),
    "all but key, gated": ("bias", "query", "value", "native_bias", "gate"),
    "all, gated": ("bias", "query", "key", "value", "native_bias", "gate"),
}
MASKS = ("none", "causal", "padding", "causal, padding", "window", "dense")

# Lengths that are timed, by dtype. Few in float32: compiling the peers takes its time.
LENGTHS = {torch.bfloat16: (512, 2048, 8192), torch.float32: (2048,)}
QUICK_LENGTHS = {torch.bfloat16: (32,), torch.float32: (32,)}
Lengths = dict[torch.dtype, tuple[int, ...]]


class Clock:
    """How much of the time is left.

    Args:
        seconds: all of it.
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()


# Correctness


def tensors(terms: tuple[str, ...], queries: int, keys: int, device: torch.device) -> dict[str, Tensor]:
    """Random states and tables in float64, the same for equal arguments."""
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    shapes = {
        "q": (BATCH, HEADS, queries, DIM),
        "k": (BATCH, KEY_HEADS, keys, DIM),
        "v": (BATCH, KEY_HEADS, keys, DIM),
        "bias": (HEADS, 2 * CLIP + 1),
        "query": (HEADS, 2 * CLIP + 1, DIM),
        "key": (HEADS, 2 * CLIP + 1, DIM),
        "value": (HEADS, 2 * CLIP + 1, DIM),
        "native_bias": (HEADS, 4 * CLIP + 1),
        "gate": (BATCH, HEADS, queries),
    }
    wanted = ("q", "k", "v", *terms)
    made = {name: torch.randn(shapes[name], generator=generator, dtype=torch.float64) for name in wanted}
    return {name: tensor.to(device) for name, tensor in made.items()}


def mask_of(kind: str, queries: int, keys: int, device: torch.device) -> AttentionMask:
    """A mask with the queries at the end of the keys; with padding, the second sequence has its first keys hidden."""
    padding = torch.ones(BATCH, keys, dtype=torch.bool, device=device)
    padding[1, : keys // 3] = False
    rules: dict[str, dict[str, Any]] = {
        "none": {},
        "causal": {"causal": True},
        "padding": {"padding": padding},
        "causal, padding": {"causal": True, "padding": padding},
        "window": {"window": 3},
        "dense": {"dense": (torch.arange(queries)[:, None] + torch.arange(keys) * 7) % 3 > 0},
    }
    given = rules[kind]
    if "dense" in given:
        given["dense"] = given["dense"].to(device)[None, None]
    return AttentionMask(queries, keys, query_offset=keys - queries, **given)


def terms_of(tensors: dict[str, Tensor]) -> RelativeTerms:
    """What is not a state."""
    return RelativeTerms(**{name: tensor for name, tensor in tensors.items() if name not in ("q", "k", "v")})


def outcome(engine: str, made: dict[str, Tensor], mask: AttentionMask, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output and gradients of one engine, in float64; the inputs are rounded to the dtype."""
    leaves = {name: tensor.to(dtype, copy=True).requires_grad_() for name, tensor in made.items()}
    terms = terms_of(leaves)
    output, _ = attend(leaves["q"], leaves["k"], leaves["v"], terms, mask, scale=DIM**-0.5, engine=engine)
    output.backward(torch.cos(torch.arange(output.numel(), device=output.device)).view_as(output).to(dtype))
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    return {
        name: tensor.detach().double() for name, tensor in {"output": output, **gradients}.items() if tensor is not None
    }


def times_tolerance(actual: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype) -> float:
    """The largest error over the tolerance; infinite if something is missing or not finite."""
    if actual.keys() != wanted.keys():
        return math.inf
    worst = 0.0
    for name, expected in wanted.items():
        error = (actual[name] - expected).abs().max() / expected.abs().max().clamp(min=1.0)
        worst = max(worst, float(error) if error.isfinite() else math.inf)
    return worst / TOLERANCE[dtype]


def correctness(device: torch.device, shapes: tuple[tuple[int, int], ...], clock: Clock) -> Iterator[dict[str, Any]]:
    """One row per engine, case and dtype that the engine takes: its error against `eager` in float64.

    Kernels are compiled for dtype, terms and mask, so shapes change fastest.
    """
    for dtype, (name, terms), kind, (queries, keys) in itertools.product(DTYPES, TERMS.items(), MASKS, shapes):
        if clock.left() < 0:
            return
        made = {name: tensor.to(dtype) for name, tensor in tensors(terms, queries, keys, device).items()}
        mask = mask_of(kind, queries, keys, device)
        wanted = outcome("eager", made, mask, torch.float64)
        for engine in ENGINE_NAMES:
            if engine == "auto" or takes(engine, made, mask):
                actual = outcome(engine, made, mask, dtype)
                error = times_tolerance(actual, wanted, dtype)
                same = engine != "fused" or equal(actual, outcome(engine, made, mask, dtype))
                yield {
                    "engine": engine,
                    "case": f"{queries} x {keys}, {name}, mask: {kind}",
                    "dtype": name_of(dtype),
                    "times_tolerance": error,
                    "same_bits": same,
                    "right": error <= 1 and same,
                }


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two runs gave the same bits."""
    return all(torch.equal(first[name], second[name]) for name in first)


def takes(engine: str, made: dict[str, Tensor], mask: AttentionMask) -> bool:
    """Whether an engine takes a case."""
    return ENGINES[engine].refuses(Case(made["q"], made["k"], made["v"], terms_of(made), mask)) is None


def number_of(shapes: tuple[tuple[int, int], ...]) -> int:
    """How many cases there are, counted for each dtype."""
    return len(DTYPES) * len(TERMS) * len(MASKS) * len(shapes)


# Times


def attention_tables(device: torch.device, lengths: Lengths, seconds: float, clock: Clock) -> Iterator[Part]:
    """Attention alone, forward and backward, causal: what a decoder trains with."""
    which = attention.PASSES[1]
    for scheme in attention.SCHEMES:
        names, failures = working(scheme, device)
        for dtype, length in pairs(lengths):
            if clock.left() < 0:
                return
            batch = attention.batch_for(length)
            problem = attention.make(scheme, length, causal=True, batch=batch, device=device, dtype=dtype)
            rows = attention.measure(names, problem, which, seconds, limit=1.0) + failures
            attention.show(f"{scheme}, causal, {which}, {length} tokens x {batch}, {name_of(dtype)}", rows)
            of = {"what": "attention", "scheme": scheme, "pass": which, "direction": "causal", "length": length}
            yield part({**of, "dtype": name_of(dtype)}, rows)
            free(device)


def working(scheme: str, device: torch.device) -> tuple[list[str], list[dict[str, Any]]]:
    """The contestants that agree with the reference here, and a row for each that does not or fails: its reason."""
    names, failures = [], []
    for name in attention.others():
        try:
            attention.check([name], scheme, causal=True, device=device, backward=True)
        except Exception as error:  # whatever it is, the others are still to be measured
            reason = f"fails: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            failures.append({"contestant": name, "skipped": reason, "why": "case"})
        else:
            names.append(name)
    return names, failures


def step_tables(device: torch.device, lengths: Lengths, seconds: float, clock: Clock) -> Iterator[Part]:
    """Training steps, every family."""
    for (dtype, length), family in itertools.product(pairs(lengths), PATCHES):
        if clock.left() < 0:
            return
        rows = training_step.measure(family, length, seconds, device=device, dtype=dtype)
        cells = [[row["model"], f"{row['seconds']:.4g}", f"{row['ratio']:.2f}"] for row in rows]
        print_table([[f"{family}, {length} tokens, {name_of(dtype)}", "seconds", "ratio"], *cells])
        print(flush=True)
        yield part({"what": "training step", "family": family, "length": length, "dtype": name_of(dtype)}, rows)
        free(device)


def pairs(lengths: Lengths) -> list[tuple[torch.dtype, int]]:
    """Each dtype with each of its lengths."""
    return [(dtype, length) for dtype, several in lengths.items() for length in several]


def name_of(dtype: torch.dtype) -> str:
    """The dtype without the package's name."""
    return str(dtype).removeprefix("torch.")


def free(device: torch.device) -> None:
    """Give back what is no longer needed."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# The script


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda", help="cuda (default), cuda:1, ...; or cpu, to try the script")
    made.add_argument("--quick", action="store_true", help="small problems, few rounds")
    made.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    made.add_argument("--output-dir", type=Path, default=RESULTS, help="where gpu_check.json is")
    made.add_argument("--no-save", action="store_true", help="print only")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Check, measure, print, and keep the results.

    Returns:
        0 if all is right, 1 if an engine is wrong, 2 if there is no such device.
    """
    args = parser().parse_args(arguments)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            f"There is no GPU that PyTorch {torch.__version__} can use (torch.cuda.is_available() is False), so there "
            "is nothing to check. To try the script itself on small problems: --device cpu --quick",
            file=sys.stderr,
        )
        return 2
    clock = Clock(args.seconds)
    shapes = QUICK_SHAPES if args.quick else SHAPES
    checked = list(correctness(device, shapes, Clock(args.seconds / 3)))
    wrong = [row for row in checked if not row["right"]]
    done = len({(row["case"], row["dtype"]) for row in checked})
    print(f"{done} of {number_of(shapes)} cases on {device}, {len(checked)} results, {len(wrong)} of them wrong.")
    for row in wrong:
        bits = "" if row["same_bits"] else ", other bits in a second run"
        print(f"WRONG: {row['engine']}, {row['case']}, {row['dtype']}: {row['times_tolerance']:.1e} x tolerance{bits}")
    print(flush=True)
    lengths, seconds = (QUICK_LENGTHS, 0.0) if args.quick else (LENGTHS, 0.5)
    keep([part({"what": "correctness"}, checked)], device, args)
    half = Clock(clock.left() / 2)
    for table in itertools.chain(
        attention_tables(device, lengths, seconds, half), step_tables(device, lengths, seconds, clock)
    ):
        keep([table], device, args)
    if clock.left() < 0:
        print(f"Out of time ({args.seconds:g} s): the tables that are missing were left out.")
    return 1 if wrong else 0


def keep(made: list[Part], device: torch.device, args: argparse.Namespace) -> None:
    """Write parts with the name of the GPU in them; what a CPU did is not what the file is for."""
    if device.type == "cuda" and not args.no_save:
        made = [with_gpu(each, torch.cuda.get_device_name(device), torch.version.cuda) for each in made]
        write_parts("gpu_check", made, args.output_dir)


if __name__ == "__main__":
    sys.exit(main())
