"""A full training step of a patched model against the same model unpatched: ``python -m benchmarks.training_step``.

Forward and backward, 4 layers, random weights. BERT and GPT-2: hidden size 768, 12 heads, vocabulary 8,000; T5: model
size 512, 8 heads, source and target of the length given. No dropout, unless ``--dropout`` gives one for the attention
weights; no padding, unless ``--padding`` asks for lengths uniform in half to all of the length. The models of a
comparison take their steps in turn, in one process, so that a machine that changes its pace changes it for all of them;
a ratio is the median of a model's times over the median of the unpatched one's. Each family, length and variant is a
part of the results, which measuring it again replaces.
"""

from __future__ import annotations

import argparse
import gc
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, print_table
from benchmarks.models import FAMILIES, PATCHES, UNPATCHED, batch_of, patched, unpatched
from benchmarks.parts import Part, part, write_parts
from benchmarks.rounds import summary, take_turns, timed

LENGTHS = (128, 512, 1024, 2048, 4096)
TOKENS = 2048  # per step, or one sequence where that is longer


def step(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """The seconds one forward and backward pass takes."""
    model.zero_grad()
    return timed(lambda: model(**batch).loss.backward(), batch["input_ids"].device)


def measure(
    family: str,
    length: int,
    seconds: float,
    engine: str = "auto",
    *,
    padding: bool = False,
    dropout: float = 0.0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """One row per model."""
    models = {UNPATCHED: unpatched(family, length, dropout)}
    for name in PATCHES[family]:
        models[name] = patched(family, name, length, dropout, engine=engine)
    batch = batch_of(family, length, max(1, TOKENS // length), padding)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    runs = {name: partial(step, model.to(device, dtype), batch) for name, model in models.items()}
    rows = summary(take_turns(runs, seconds), UNPATCHED)
    return [{"model": name, "batch": len(batch["input_ids"]), **row} for name, row in rows.items()]


def measured_part(family: str, length: int, args: argparse.Namespace) -> Part:
    """One family and length, measured and printed."""
    variant = {"padding": args.padding, "dropout": args.dropout}
    rows = measure(family, length, args.seconds, args.engine, **variant)
    said = [f"{family}, {length} tokens x {rows[0]['batch']}"]
    said += ["padded"] * args.padding + [f"attention dropout {args.dropout}"] * (args.dropout > 0)
    print_table(
        [
            [", ".join(said), "seconds", "ratio"],
            *([row["model"], f"{row['seconds']:.3f}", f"{row['ratio']:.2f}"] for row in rows),
        ]
    )
    print(flush=True)
    of = {"family": family, "length": length, **variant, "engine": args.engine}
    return part(of, rows, threads=args.threads, dtype="float32")


def main() -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--padding", action="store_true", help="sequences of random length in a batch")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of the attention weights")
    parser.add_argument("--seconds", type=float, default=30, help="per family and length")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where training_step.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for family in args.families:
        for length in args.lengths:
            measured = measured_part(family, length, args)
            if not args.no_save:  # at once: a long run that is broken off keeps what it has
                print(write_parts("training_step", [measured], args.output_dir), end="\n\n")
            gc.collect()


if __name__ == "__main__":
    main()
