"""The options of `hf-relpos patch`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.choices import add_gate, add_native, add_schemes
from hf_relpos.cli.demo_options import positive

DESCRIPTION = """
Give a pretrained model relative positions, and save it with its tokenizer and its card, ready to be trained. With the
schemes whose tables start at zero it computes what it computed before. Load it through an Auto class, in a process that
has imported hf_relpos.
"""

EXAMPLES = """
examples:
  hf-relpos patch bert-base-uncased --scheme shaw:16 --output-dir patched
  hf-relpos patch t5-small --scheme t5 shaw:8,per_head=true --gate token --push-to-hub me/t5-relative
  hf-relpos patch --scheme shaw:16 --output-dir patched      (the MiniLM of the demo extra, without a network)
"""


def add_command(commands: Any) -> None:
    """Add `patch` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "patch",
        help="give a model relative positions, and save or push it",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="Hub id or folder of a model, or of a sentence-transformers one (the MiniLM of the demo extra)",
    )  # fmt: skip
    parser.add_argument("--output-dir", metavar="DIR", help="a new folder for the model")
    parser.add_argument("--push-to-hub", metavar="ID", help="the repo to push it to; one of these two, or both")
    patch = parser.add_argument_group("relative positions")
    add_schemes(patch)
    add_native(patch)
    add_gate(patch)
    patch.add_argument("--window", type=positive, metavar="N", help="local attention, to so many tokens (none)")
    patch.add_argument("--layers", nargs="+", type=int, metavar="N", help="only these layers, counted from 0 (all)")
    patch.add_argument("--share-layers", action="store_true", help="one set of tables and gates for all layers")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.patch import run_patch

    run_patch(args)
