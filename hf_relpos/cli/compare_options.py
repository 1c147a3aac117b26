"""The options of `hf-relpos compare`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.demo_options import positive, seed
from hf_relpos.schemes import SCHEMES

DESCRIPTION = f"""
Fine-tune one model on one task with several position settings and several seeds: the same head, the same texts in the
same order, the same budget. The folder has a page to look at or to send to somebody (index.html), its plots, and the
numbers as JSON and CSV. Given again, the command goes on where it was interrupted.

settings:
  unpatched        the model as it is
  shaw:8           relative positions beside its own; of {", ".join(SCHEMES)}
  t5+shaw:8        several that add up
  gate/shaw:8      the same, its own positions times a learned number       (gate alone: gate/shaw:16)
  drop/shaw:8      the same in place of its own positions                   (drop alone: drop/shaw:16)
  converted/t5     the same, after it was taught on the texts to do without (alone: clipped:128+shaw:64,per_head=true)
"""

EXAMPLES = """
examples:
  hf-relpos compare --output-dir compared               (MiniLM on BBC news, which the demo extra carries)
  hf-relpos compare bert-base-uncased --texts rows.csv --settings unpatched shaw:8 t5 --output-dir compared
  hf-relpos compare --task distance --max-length 64 --settings unpatched shaw:16 drop --output-dir apart
"""

# What has another name than the argument of `hf_relpos.compare`, for errors.
CALLED = {
    "model": "MODEL", "train": "--texts", "evaluation": "--eval-texts", "memory": "measuring memory, as sweep does,",
}  # fmt: skip

# The choices of `hf_relpos.compare` that are options. What is not given is left to it.
CHOICES = (
    "task", "seeds", "steps", "epochs", "max_length", "batch_size", "learning_rate", "added_learning_rate", "limit",
    "eval_limit", "conversion_steps",
)  # fmt: skip


def add_command(commands: Any) -> None:
    """Add `compare` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "compare",
        help="fine-tune a model with several position settings, and show which does better",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser)
    parser.add_argument(
        "--settings", nargs="+", metavar="SETTING",
        help="what is compared (unpatched shaw:8 shaw:16 t5 alibi gate drop)",
    )  # fmt: skip
    parser.set_defaults(run=_run, called=CALLED)


def add_common(parser: Any) -> None:
    """Add what `compare` and `sweep` both have."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="Hub id or folder of a model (the MiniLM of the demo extra)"
    )
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="where all results go")
    task = parser.add_argument_group("task")
    task.add_argument(
        "--task", choices=("classification", "distance"), metavar="TASK",
        help="classification: which label a text has (the default); distance: how far apart two marked words stand, in "
        "any texts, which cannot be told without positions",
    )  # fmt: skip
    task.add_argument(
        "--texts", metavar="FILE_OR_ID",
        help="a .csv, .json or .jsonl file, or a data set on the Hub; for distance also a text file (BBC news)",
    )  # fmt: skip
    task.add_argument("--eval-texts", metavar="FILE_OR_ID", help="to measure on (a fifth of --texts)")
    task.add_argument("--text-column", metavar="NAME", help="the column that has the texts (text)")
    task.add_argument("--label-column", metavar="NAME", help="the column that has the labels (label)")
    task.add_argument("--limit", type=positive, metavar="N", help="texts to learn from at most (all)")
    task.add_argument("--eval-limit", type=positive, metavar="N", help="texts to measure on at most (256)")
    training = parser.add_argument_group("training")
    training.add_argument("--seeds", nargs="+", type=seed, metavar="N", help="each setting runs with each (0 1 2)")
    length = training.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, metavar="N", help="of each run (100)")
    length.add_argument("--epochs", type=float, metavar="N", help="the same, told by how often all texts are seen")
    training.add_argument("--max-length", type=positive, metavar="N", help="tokens after which a text is cut off (128)")
    training.add_argument("--batch-size", type=positive, metavar="N", help="texts per step (8)")
    training.add_argument(
        "--learning-rate", type=float, metavar="RATE", help="the highest, of the pretrained parameters (1e-4)"
    )
    training.add_argument(
        "--added-learning-rate", type=float, metavar="RATE", help="the highest, of what a patch adds (2e-3)"
    )
    training.add_argument(
        "--conversion-steps", nargs=2, type=int, metavar="N",
        help="of what is converted: for tables and gates alone, and for everything (100 300)",
    )  # fmt: skip


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.compare import run_compare

    run_compare(args)
