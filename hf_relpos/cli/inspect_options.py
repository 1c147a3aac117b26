"""The options of `hf-relpos inspect`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.demo_options import positive
from hf_relpos.cli.texts import add_texts

DESCRIPTION = """
What a patched model has learned about positions: what is patched, the parameters of each scheme, its tables, its gates
by layer and head. With --texts, also how much the attention of each head goes by positions, relative and pretrained.
"""

EXAMPLES = """
examples:
  hf-relpos inspect relpos-demo/model                     (the model that `hf-relpos demo` leaves)
  hf-relpos inspect patched --texts texts.txt --output-dir inspected
  hf-relpos inspect patched --json > inspected.json
"""


def add_command(commands: Any) -> None:
    """Add `inspect` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "inspect",
        help="show what a patched model has learned about positions, and how much it uses them",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="Hub id or folder of a patched model")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print all numbers as JSON")
    output.add_argument(
        "--output-dir", metavar="DIR",
        help="a new folder for a page to look at, the numbers as JSON, and the plots as PNG and SVG",
    )  # fmt: skip
    reading = parser.add_argument_group("reading")
    add_texts(reading, "what the model reads, to measure its attention")
    reading.add_argument("--samples", type=positive, default=16, metavar="N", help="texts at most (%(default)s)")
    reading.add_argument(
        "--max-length", type=positive, metavar="N",
        help="tokens after which a text is cut off (256, or what the model can read)",
    )  # fmt: skip
    parser.set_defaults(run=_run, called={"length": "--max-length"})


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.inspect import run_inspect

    run_inspect(args)
