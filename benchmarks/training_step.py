"""A full training step of a patched model against the same model unpatched: ``python -m benchmarks.training_step``.

Forward and backward, 4 layers, hidden size 768, 12 heads, vocabulary 8,000, no dropout, random weights. The models of a
comparison take their steps in turn, in one process, so that a machine that changes its pace changes it for all of them;
a ratio is the median of a model's times over the median of the unpatched one's.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from benchmarks.common import print_table, write_results
from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, patch_model

LENGTHS = (128, 512, 1024, 2048, 4096)
TOKENS = 2048  # per step, or one sequence where that is longer
VOCABULARY = 8000
UNPATCHED = "unpatched, sdpa"
SCHEMES: dict[str, dict[str, Any]] = {
    "bert": {
        "Shaw(8)": Shaw(8),
        "Shaw(16)": Shaw(16),
        "Shaw(32)": Shaw(32),
        "T5Bias()": T5Bias(),
        "ClippedBias(128)": ClippedBias(128),
    },
    "gpt2": {"Shaw(16)": Shaw(16), "T5Bias()": T5Bias()},
}


def build(family: str, length: int) -> torch.nn.Module:
    """The unpatched model, in training mode."""
    torch.manual_seed(0)
    if family == "bert":
        config: Any = BertConfig(
            vocab_size=VOCABULARY, num_hidden_layers=4, max_position_embeddings=length,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return BertForMaskedLM(config).train()
    config = GPT2Config(
        vocab_size=VOCABULARY, n_layer=4, n_positions=length, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """The seconds one forward and backward pass takes."""
    model.zero_grad()
    start = time.perf_counter()
    model(**batch).loss.backward()
    return time.perf_counter() - start


def compare(steps: dict[str, Callable[[], float]], seconds: float) -> dict[str, list[float]]:
    """Times of each, taken in turn until the seconds are over; at least three rounds after one to warm up."""
    for run in steps.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 3:
        for name, run in steps.items():
            times[name].append(run())
    return times


def measure(family: str, length: int, seconds: float, engine: str) -> list[dict[str, Any]]:
    """One row per model."""
    models = {UNPATCHED: build(family, length)}
    for name, scheme in SCHEMES[family].items():
        models[name] = patch_model(build(family, length), RelPosConfig(scheme, engine=engine))  # type: ignore[type-var]
    ids = torch.randint(VOCABULARY, (max(1, TOKENS // length), length))
    batch = {"input_ids": ids, "labels": ids}
    times = compare({name: lambda model=model: step(model, batch) for name, model in models.items()}, seconds)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        {
            "family": family,
            "length": length,
            "batch": len(ids),
            "model": name,
            "rounds": len(times[name]),
            "seconds": round(median, 4),
            "ratio": round(median / medians[UNPATCHED], 3),
        }
        for name, median in medians.items()
    ]


def main() -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--seconds", type=float, default=30, help="per family and length")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for family in args.families:
        for length in args.lengths:
            rows = measure(family, length, args.seconds, args.engine)
            results += rows
            print_table(
                [
                    [f"{family}, {length} tokens x {rows[0]['batch']}", "seconds", "ratio"],
                    *([row["model"], f"{row['seconds']:.3f}", f"{row['ratio']:.2f}"] for row in rows),
                ]
            )
            print(flush=True)
            gc.collect()
    if not args.no_save:
        print(write_results("training_step", {"threads": args.threads, "engine": args.engine, "results": results}))


if __name__ == "__main__":
    main()
