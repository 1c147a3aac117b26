"""The options of `hf-relpos recommend`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.advice.situation import TASKS
from hf_relpos.cli.demo_options import positive
from hf_relpos.cli.texts import add_texts

DESCRIPTION = """
Which relative positions to take for a model, a task and texts like yours, and why: each rule with where it is
published, also where published work finds no gain. Nothing is trained, and nothing is written.
"""

EXAMPLES = """
examples:
  hf-relpos recommend bert-base-uncased --task classification --texts train.csv --text-column body
  hf-relpos recommend --task question-answering      (the MiniLM and the BBC news of the demo extra, without a network)
"""


def add_command(commands: Any) -> None:
    """Add `recommend` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "recommend",
        help="propose settings for a model, a task and your texts, and say why",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="Hub id or folder of a model (the MiniLM of the demo extra)"
    )
    parser.add_argument(
        "--task", required=True, metavar="TASK",
        help="what the model is for: " + "; ".join(f"{name} ({what})" for name, what in TASKS.items()),
    )  # fmt: skip
    add_texts(parser, "texts like yours, of which the lengths are measured (the BBC news of the demo extra)")
    parser.add_argument(
        "--samples", type=positive, default=1000, metavar="N", help="measure so many texts at most (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.recommend import run_recommend

    run_recommend(args)
