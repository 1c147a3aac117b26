"""Attention alone, by every engine and by other ways to compute it: ``python -m benchmarks.attention``.

12 heads of 64, forward alone and with the backward pass, both directions and causal. All contestants of a comparison
take turns in one process, so that a machine that changes its pace changes it for all of them; a ratio is the median of
one's times over the median of ``scaled_dot_product_attention`` without positions. Before anything is timed, each
contestant must agree with the engine ``eager`` on a small problem, gradients included. What cannot take a problem, does
not fit into memory, or needs longer than the limit is left out, and the results say why. Each comparison is a part of
the results, which measuring it again replaces.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common import RESULTS, print_table
from benchmarks.load import busy
from benchmarks.parts import Part, part, with_versions, write_parts
from benchmarks.peers import PEERS
from benchmarks.problems import HEADS, SCHEMES, Problem, engine_names, engine_refuses, make, plain, solver
from benchmarks.rounds import summary, take_turns, timed

LENGTHS = (128, 512, 1024, 2048, 4096, 8192)
TOKENS = 2048  # in a problem, or one sequence where that is longer
PASSES = ("forward", "forward and backward")
DIRECTIONS = ("both", "causal")
PLAIN = "plain, sdpa"

# What holds all scores has about so many tensors of their size at its peak, without and with the backward pass.
SCORE_TENSORS = {PASSES[0]: 6, PASSES[1]: 11}
QUADRATIC_ENGINES = ("eager",)

CHECK_LENGTH = 50  # more than twice Shaw's clip distance
# Largest difference to the reference, relative to its largest number.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


class Contestant(NamedTuple):
    """Something that computes a problem.

    Attributes:
        prepare: from a problem to the work that is measured.
        refuses: why it cannot take a problem, with the backward pass or without; None if it can.
        numbers_per_pair: how many numbers it holds for each pair of positions at its peak, by pass; 0 if its memory is
            linear in the length.
    """

    prepare: Callable[[Problem], Callable[[], Tensor]]
    refuses: Callable[[Problem, bool], str | None]
    numbers_per_pair: Mapping[str, int]


def contestants() -> dict[str, Contestant]:
    """Plain attention, the engines, the peers."""
    linear = dict.fromkeys(PASSES, 0)
    found = {PLAIN: Contestant(lambda problem: partial(plain, problem), lambda problem, backward: None, linear)}
    for name in engine_names():
        quadratic = {key: HEADS * tensors for key, tensors in SCORE_TENSORS.items()}
        found[name] = Contestant(
            solver(name),
            lambda problem, backward, name=name: engine_refuses(name, problem, backward),
            quadratic if name in QUADRATIC_ENGINES else linear,
        )
    for name, peer in PEERS.items():
        numbers = {key: HEADS * tensors + peer.extra_numbers for key, tensors in SCORE_TENSORS.items()}
        found[name] = Contestant(peer.prepare, peer.refuses, numbers)
    return found


def others() -> list[str]:
    """All contestants but plain attention, which computes something else and is always there."""
    return [name for name in contestants() if name != PLAIN]


# Is it right?


def difference(
    contestant: Contestant, scheme: str, causal: bool, device: str | torch.device, backward: bool
) -> float | None:
    """By how many times the tolerance a contestant is off on a small problem; None if it takes none like it.

    In float64 where it can, else in float32.
    """
    for dtype, tolerance in TOLERANCE.items():
        problem = make(scheme, CHECK_LENGTH, causal=causal, batch=2, device=device, dtype=dtype)
        if contestant.refuses(problem, backward) is None:
            expected = outcome(problem, solver("eager")(problem), backward)
            actual = outcome(problem, contestant.prepare(problem), backward)
            return max(_relative(actual[name], wanted) for name, wanted in expected.items()) / tolerance
    return None


def outcome(problem: Problem, work: Callable[[], Tensor], backward: bool) -> dict[str, Tensor]:
    """The output and, if asked for, the gradient of everything that goes in."""
    with torch.set_grad_enabled(backward):
        output = work()
    if not backward:
        return {"output": output}
    problem.backward(output)
    gradients = {name: leaf.grad.clone() for name, leaf in problem.leaves().items() if leaf.grad is not None}
    return {"output": output.detach(), **gradients}


def _relative(actual: Tensor, wanted: Tensor) -> float:
    off = float((actual - wanted).abs().max() / wanted.abs().max())
    return math.inf if math.isnan(off) else off


def check(names: list[str], scheme: str, causal: bool, device: str | torch.device, backward: bool) -> None:
    """Refuse to time what is wrong.

    Raises:
        RuntimeError: if a contestant does not agree with the reference.
    """
    known = contestants()
    for name in names:
        times = difference(known[name], scheme, causal, device, backward)
        if times is not None and times > 1:
            raise RuntimeError(f"{name!r} is off by {times:.1e} times the tolerance on {scheme}, causal={causal}.")


# How long does it take?


def bytes_free(device: torch.device) -> float:
    """The memory that is left on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable: this benchmark needs Linux")


def too_large(numbers_per_pair: int, problem: Problem) -> str | None:
    """Why a problem does not fit: it may take half of the free memory."""
    need = numbers_per_pair * problem.query.element_size() * len(problem.query) * problem.length**2
    free = bytes_free(problem.device)
    if need <= free / 2:
        return None
    return f"needs about {need / 2**30:.0f} GiB, more than half of the {free / 2**30:.0f} GiB that are free"


def one_pass(problem: Problem, work: Callable[[], Tensor], backward: bool) -> float:
    """The seconds of one pass."""

    def run() -> None:
        with torch.set_grad_enabled(backward):
            output = work()
        if backward:
            problem.backward(output)

    return timed(run, problem.device)


def measure(
    names: list[str],
    problem: Problem,
    which: str,
    seconds: float,
    limit: float,
    slow: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """One row per contestant: its times, or why it has none.

    Args:
        names: the contestants besides plain attention.
        problem: what they all compute.
        which: one of ``PASSES``.
        seconds: how long the rounds go on.
        limit: seconds a pass may take.
        slow: those that took too long at a smaller length, and what is to be said of them; added to.
    """
    slow = {} if slow is None else slow
    backward = which == PASSES[1]
    runs: dict[str, Callable[[], float]] = {}
    skipped: dict[str, dict[str, Any]] = {}
    known = contestants()
    for name in dict.fromkeys([PLAIN, *names]):
        contestant = known[name]
        if reason := contestant.refuses(problem, backward):
            skipped[name] = {"skipped": reason, "why": "case"}
            continue
        if reason := too_large(contestant.numbers_per_pair[which], problem):
            skipped[name] = {"skipped": reason, "why": "memory"}
            continue
        if reason := slow.get(name):
            skipped[name] = {"skipped": reason, "why": "time"}
            continue
        run = partial(one_pass, problem, contestant.prepare(problem), backward)
        run()  # to warm up: kernels load, compilers compile
        taken = run()
        if name != PLAIN and taken > limit:
            slow[name] = f"took {taken:.1f} s a pass at {problem.length} tokens; the limit is {limit:g} s"
            skipped[name] = {"skipped": slow[name], "why": "time"}
            continue
        runs[name] = run
    rows = {**skipped, **summary(take_turns(runs, seconds, warm_up=False), PLAIN)}
    return [{"contestant": name, **rows[name]} for name in dict.fromkeys([PLAIN, *names])]


def batch_for(length: int) -> int:
    """As many sequences as make ``TOKENS``."""
    return max(1, TOKENS // length)


def comparisons(args: argparse.Namespace) -> Iterator[Part]:
    """All that was asked for, measured one after the other."""
    load = {"load": args.load} if args.load else {}
    for scheme, direction, which in itertools.product(args.schemes, args.directions, args.passes):
        causal, backward = direction == "causal", which == PASSES[1]
        check(args.contestants, scheme, causal, "cpu", backward)
        slow: dict[str, str] = {}
        for length in args.lengths:
            problem = make(scheme, length, causal=causal, batch=batch_for(length))
            with busy(args.load):
                rows = measure(args.contestants, problem, which, args.seconds, args.limit, slow)
            of = {"scheme": scheme, "direction": direction, "pass": which, "length": length, **load}
            made = part(of, rows, batch=batch_for(length), threads=args.threads, dtype="float32")
            yield with_versions(made, "x-transformers")
            gc.collect()


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print one comparison."""
    times = [[row["contestant"], f"{row['seconds']:.4g}", f"{row['ratio']:.2f}"] for row in rows if "seconds" in row]
    print_table([[title, "seconds", "ratio"], *times])
    for row in rows:
        if "skipped" in row:
            print(f"not: {row['contestant']} {row['skipped']}")
    print(flush=True)


def main() -> None:
    """Measure, print, and keep the results."""
    known = others()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--contestants", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--seconds", type=float, default=5, help="of measuring per comparison, at least three rounds")
    parser.add_argument("--limit", type=float, default=30, help="seconds a pass may take")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it: as many as there are cores")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where attention.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for made in comparisons(args):
        of = {"load": 0, **made["of"]}
        said = f"{of['scheme']}, {of['direction']}, {of['pass']}, {of['length']} tokens x {made['batch']}"
        show(said + f", beside {of['load']} busy processes" * bool(of["load"]), made["results"])
        if not args.no_save:  # at once: a long run that is broken off keeps what it has
            write_parts("attention", [made], args.output_dir)


if __name__ == "__main__":
    main()
