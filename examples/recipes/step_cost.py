"""What a training step of a small T5 takes with Shaw's vectors: its memory, and its time beside the unpatched model's.

Run in a process of its own, by :func:`cost`, so that the memory is that of one model.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import in_fresh_process
from benchmarks.memory import CHILD_ENVIRONMENT, status_mib

MODULE = "examples.recipes.step_cost"


def cost(start: Path, sentences: dict[str, list[str]], distance: int | None, seconds: float) -> dict[str, float]:
    """MiB that a step adds to the process at its peak, and the time of a step as a ratio to the unpatched model's.

    Args:
        start: folder with the model and its tokenizer.
        sentences: a batch, sources under ``"text"`` and targets under ``"text_target"``.
        distance: Shaw's clip distance; None is the unpatched model.
        seconds: how long the two models take turns.
    """
    import torch

    task = {"start": str(start), "sentences": sentences, "distance": distance, "seconds": seconds}
    return in_fresh_process(MODULE, {**task, "threads": torch.get_num_threads()}, CHILD_ENVIRONMENT)


def measure(
    start: str, sentences: dict[str, list[str]], distance: int | None, seconds: float, threads: int
) -> dict[str, float]:
    """The same, in this process."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from benchmarks.rounds import summary, take_turns, timed
    from hf_relpos import RelPosConfig, Shaw, patch_model

    torch.set_num_threads(threads)
    encoded = AutoTokenizer.from_pretrained(start)(**sentences, padding=True, return_tensors="pt")
    batch = {name: encoded[name] for name in ("input_ids", "attention_mask", "labels")}
    model = AutoModelForSeq2SeqLM.from_pretrained(start).train()
    if distance is not None:
        patch_model(model, RelPosConfig(schemes=[Shaw(max_distance=distance)], native="drop"))

    def step(of: torch.nn.Module) -> None:
        of.zero_grad()
        of(**batch).loss.backward()

    model(**{name: tensor[:1] for name, tensor in batch.items()}).loss.backward()  # loads kernels, starts threads
    model.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    step(model)
    measured = {"step_mib": round(status_mib("VmHWM") - before, 1), "time_ratio": 1.0}
    if distance is not None:
        both = {"patched": model, "unpatched": AutoModelForSeq2SeqLM.from_pretrained(start).train()}
        cpu = torch.device("cpu")
        runs = {name: partial(timed, partial(step, one), cpu) for name, one in both.items()}
        measured["time_ratio"] = summary(take_turns(runs, seconds), "unpatched")["patched"]["ratio"]
    return measured


def main() -> None:
    """Do what :func:`cost` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=json.loads, required=True, help="of the measurement, as JSON")
    task: dict[str, Any] = parser.parse_args().task
    print(json.dumps(measure(**task)))


if __name__ == "__main__":
    sys.exit(main())
