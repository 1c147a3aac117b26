"""Tokens per second of greedy decoding, patched against unpatched: ``python -m benchmarks.decoding``.

GPT-2 with 4 layers and 12 heads of 64, one sequence, a dynamic cache, float32. The models decode in turn, in one
process; a ratio is the unpatched model's median time over the patched one's, so below 1 is slower. What must hold: at
least 0.97; the exit status is 1 where it does not. Short measurements on a busy machine vary by more than that.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import limits
from benchmarks.common import RESULTS, print_table
from benchmarks.models import PATCHES, UNPATCHED, VOCABULARY, patched, unpatched
from benchmarks.parts import part, write_parts
from benchmarks.rounds import summary, take_turns, timed

TOKENS, PROMPT = 256, 16
TOLERANCE = 1e-3  # of logits of size 1


def decode(model: nn.Module, prompt: Tensor, tokens: int, **options: Any) -> Any:
    """The prompt and so many tokens more, each the likeliest; or what other options of ``generate`` ask for."""
    return model.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, use_cache=True,
        pad_token_id=0, **options,
    )  # fmt: skip


def logits(model: nn.Module, prompt: Tensor, tokens: int) -> Tensor:
    """What the model thought at each step of decoding, ``[tokens, vocabulary]``."""
    decoded = decode(model, prompt, tokens, output_logits=True, return_dict_in_generate=True)
    return torch.cat(decoded.logits)


def contestants(length: int, names: list[str], device: str | torch.device = "cpu") -> dict[str, nn.Module]:
    """The unpatched model, and the patched ones."""
    models = {UNPATCHED: unpatched("gpt2", length)}
    models.update({name: patched("gpt2", name, length) for name in names})
    return {name: model.eval().to(device) for name, model in models.items()}


def measure(
    tokens: int, seconds: float, names: list[str] | None = None, device: str | torch.device = "cpu"
) -> list[dict[str, Any]]:
    """One row per model.

    Raises:
        RuntimeError: if a freshly patched model does not compute what the unpatched one does.
    """
    models = contestants(PROMPT + tokens, names or list(PATCHES["gpt2"]), device)
    prompt = torch.randint(VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(0)).to(device)
    expected = logits(models[UNPATCHED], prompt, tokens)
    for name, model in models.items():
        off = float((logits(model, prompt, tokens) - expected).abs().max())
        if off > TOLERANCE:
            raise RuntimeError(f"{name} computes other logits than the unpatched model, by up to {off:.1e}.")
    runs = {
        name: partial(timed, partial(decode, model, prompt, tokens), prompt.device) for name, model in models.items()
    }
    rows = summary(take_turns(runs, seconds, warm_up=False), UNPATCHED)
    return [
        {
            "model": name,
            "rounds": row["rounds"],
            "tokens_per_second": round(tokens / row["seconds"], 1),
            "ratio": round(1 / row["ratio"], 3),
        }
        for name, row in rows.items()
    ]


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="new tokens of each sequence")
    parser.add_argument("--patches", nargs="+", choices=PATCHES["gpt2"], default=list(PATCHES["gpt2"]))
    parser.add_argument("--seconds", type=float, default=60, help="of measuring, at least three rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where decoding.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = measure(args.tokens, args.seconds, args.patches)
    print_table(
        [
            [f"gpt2, {args.tokens} tokens after {PROMPT}", "tokens/s", "ratio", "rounds"],
            *([row["model"], row["tokens_per_second"], f"{row['ratio']:.3f}", row["rounds"]] for row in rows),
        ]
    )
    if not args.no_save:
        of = {"family": "gpt2", "prompt": PROMPT, "tokens": args.tokens, "patches": args.patches}
        print(write_parts("decoding", [part(of, rows, threads=args.threads, dtype="float32")], args.output_dir))
    holds = all(row["ratio"] >= limits.DECODING for row in rows)
    print(f"At least {limits.DECODING} of the unpatched model's speed: {'holds' if holds else 'DOES NOT HOLD'}.")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
