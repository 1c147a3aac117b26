"""The options of `hf-relpos sweep`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.compare_options import CALLED, add_common
from hf_relpos.cli.demo_options import positive

DESCRIPTION = """
Quality, memory and speed of one scheme over its clip distance, beside the model without it: the runs of `hf-relpos
compare`, each in a process of its own, in which the memory of its training steps is measured.
"""

EXAMPLES = """
examples:
  hf-relpos sweep --output-dir swept                    (Shaw's, on MiniLM and BBC news, which the demo extra carries)
  hf-relpos sweep bert-base-uncased --texts rows.csv --scheme clipped --distances 16 64 256 --output-dir swept
"""


def add_command(commands: Any) -> None:
    """Add `sweep` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "sweep",
        help="show quality, memory and speed of a scheme over its clip distance",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser)
    parser.add_argument(
        "--scheme",
        metavar="[WHAT/]NAME[,FIELD=VALUE]",
        help="as a setting of compare, without its clip distance (shaw)",
    )
    parser.add_argument("--distances", nargs="+", type=positive, metavar="K", help="its clip distances (4 8 16 32)")
    parser.set_defaults(run=_run, called=CALLED)


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.compare import run_sweep

    run_sweep(args)
