"""The options that name texts, and what they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_relpos.cli.files import TABLES, read_file


def add_texts(group: Any, what: str, required: bool = False) -> None:
    """Add `--texts` and `--text-column` to a parser or a group of options.

    Args:
        group: The parser, or the group.
        what: What they are for, for `--help`.
        required: Whether there must be some.
    """
    group.add_argument(
        "--texts", required=required, metavar="FILE_OR_ID",
        help=f"{what}: a text file with an empty line between two texts; a .csv, .json or .jsonl file; or a data set "
        "on the Hub",
    )  # fmt: skip
    group.add_argument("--text-column", default="text", metavar="NAME", help="the column that has them (%(default)s)")


def texts_of(args: argparse.Namespace) -> Any:
    """What `hf_relpos.texts.read_texts` takes: a table's rows, or what it reads itself.

    Raises:
        CommandError: If a table cannot be read.
    """
    if Path(args.texts).suffix[1:] in TABLES:
        return read_file("--texts", args.texts)
    return args.texts
