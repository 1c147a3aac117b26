"""Small models of other families, converted: ``python -m benchmarks.convert_small``.

A GPT-2 with learned absolute positions for 256 tokens, and a T5 (`benchmarks.small_models`), trained here on the
benchmark's BBC articles for training, are converted on the same articles and measured on those held out, each a part of
the results. Beside them stands the copy before it has learned anything, with its positions dropped: what conversion
gives back.

What must hold: the perplexity of the converted GPT-2 at 256 tokens is at most 1.02 of the original's, and at 1,024,
where the original cannot read, no more than at 256; the loss of the converted T5 is at most 1.02 of the original's.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hf_relpos
from benchmarks import small_models
from benchmarks.common import RESULTS, print_table
from benchmarks.corpora import bbc_texts
from benchmarks.parts import Part, part, write_parts
from benchmarks.small_models import POSITIONS, Hide, loss_over, predict, windows_of
from hf_relpos import ClippedBias, RelPosConfig, Shaw, patch_model

ORIGINAL, DROPPED, CONVERTED = "original", "positions dropped", "converted"
LENGTHS = (256, 512, 1024)
HELD_OUT = 32_768  # tokens
TRAINING_STEPS = 1000  # of the originals
STEPS = {"gpt2": (300, 4000), "t5": (200, 800)}  # of the conversion: tables alone, then everything
CHOICES = RelPosConfig(schemes=[ClippedBias(128), Shaw(64, per_head=True)], native="drop")
MOST = 1.02


def copies(model: Any, texts: Sequence[str], tokenizer: Any, **settings: Any) -> tuple[dict[str, Any], float]:
    """The three models by name, and the seconds that conversion took.

    Args:
        model: the original.
        texts: to convert on.
        tokenizer: its tokenizer.
        **settings: more for ``hf_relpos.convert``.
    """
    dropped = patch_model(copy.deepcopy(model), CHOICES)
    start = time.perf_counter()
    converted = hf_relpos.convert(model, CHOICES, texts, tokenizer, progress=False, **settings)
    return {ORIGINAL: model, DROPPED: dropped, CONVERTED: converted}, time.perf_counter() - start


def gpt2_part(texts: Sequence[str], held_out: Tensor, tokens: Tensor, tokenizer: Any) -> Part:
    """Perplexity by the length of the windows in which the held-out tokens are read."""
    model = small_models.train(small_models.small_gpt2(), tokens, predict, TRAINING_STEPS)
    models, seconds = copies(model, texts, tokenizer, steps=STEPS["gpt2"], lengths=LENGTHS)
    rows = [
        {
            "model": name,
            **{str(length): round(math.exp(loss_over(each, windows_of(held_out, length), predict)), 3)
               for length in LENGTHS if length <= POSITIONS or name != ORIGINAL},
        }
        for name, each in models.items()
    ]  # fmt: skip
    return part({"what": "gpt2"}, rows, seconds=round(seconds), **_settings(model))


def t5_part(texts: Sequence[str], held_out: Tensor, tokens: Tensor, tokenizer: Any) -> Part:
    """Loss on held-out windows of the length it was trained at, the same tokens hidden from each model."""
    hidden = tokenizer.mask_token_id
    model = small_models.train(small_models.small_t5(), tokens, Hide(hidden), TRAINING_STEPS)
    # T5's own length has no bound; this is what it was trained at.
    lengths = (POSITIONS // 8, POSITIONS // 4, POSITIONS // 2, POSITIONS)
    models, seconds = copies(model, texts, tokenizer, steps=STEPS["t5"], lengths=lengths)
    windows = windows_of(held_out, POSITIONS)
    rows = [{"model": name, "loss": round(loss_over(each, windows, Hide(hidden)), 4)} for name, each in models.items()]
    return part({"what": "t5"}, rows, seconds=round(seconds), **_settings(model))


def _settings(model: Any) -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "parameters": model.num_parameters(), "relpos": CHOICES.to_dict()}


def misses(made: Part) -> list[str]:
    """What should hold of a part and does not, in words."""
    rows = {row["model"]: row for row in made["results"]}
    ours, original = rows[CONVERTED], rows[ORIGINAL]
    if made["of"]["what"] == "t5":
        return _long("T5's loss", ours["loss"], MOST * original["loss"], f"{MOST} of the original's")
    return [
        *_long("GPT-2's perplexity at 256", ours["256"], MOST * original["256"], f"{MOST} of the original's"),
        *_long("GPT-2's perplexity at 1024", ours["1024"], ours["256"], "its own at 256"),
    ]


def _long(what: str, is_: float, most: float, name: str) -> list[str]:
    return [f"{what} is {is_:.3f}, more than {most:.3f}, {name}"] if is_ > most else []


MEASURES = {"gpt2": gpt2_part, "t5": t5_part}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, convert, measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASURES, help="one of the two (default: both)")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where convert_small.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args(arguments)
    training, held_out = bbc_texts()
    tokenizer = small_models.tokenizer_of(training)
    tokens = small_models.stream(training, tokenizer)
    asked = small_models.stream(held_out, tokenizer)[:HELD_OUT]
    missed = []
    for what in [args.only] if args.only else MEASURES:
        made = MEASURES[what](training, asked, tokens, tokenizer)
        names = list(made["results"][-1])
        print_table([[what, *names[1:]], *([row.get(name, "") for name in names] for row in made["results"])])
        missed += misses(made)
        if not args.no_save:
            print(write_parts("convert_small", [made], args.output_dir), end="\n\n")
    print(f"What must hold {'DOES NOT HOLD: ' + '; '.join(missed) if missed else 'holds'}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
