"""The options that name texts, and what they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.files import TABLES, read_file
from hf_relpos.cli.loading import loading
from hf_relpos.texts import is_missing_file, load_data_set

COLUMN = "text"


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
    group.add_argument("--text-column", metavar="NAME", help=f"the column of a table that has them ({COLUMN})")


def texts_of(args: argparse.Namespace) -> Any:
    """The texts that the options name, or None: the path of a text file, or a table's rows, with the texts in `text`.

    What is wrong with them is found before a model is loaded, and said of the options.

    Raises:
        CommandError: If there are no such texts, or `--text-column` does not fit them.
    """
    given, column = args.texts, args.text_column
    if given is None or (Path(given).is_file() and Path(given).suffix[1:] not in TABLES):
        if column is not None:
            what = "there is no --texts" if given is None else f"--texts {given} is a text file"
            raise CommandError(f"--text-column {column} names a column of a table, but {what}. Leave it out.")
        return given
    if Path(given).suffix[1:] in TABLES:
        rows = read_file("--texts", given)
    elif is_missing_file(given):
        raise CommandError(
            f"--texts {given} does not exist. Give the path of a text file, of a .{', .'.join(TABLES)} file, or the id "
            "of a data set on the Hub."
        )
    else:
        with loading("--texts", given, "a data set that has a part 'train' (or the path of a text file)"):
            rows = load_data_set(given)
    column = column or COLUMN
    if column not in (rows.column_names or [column]):  # a streamed table may know its columns only while it is read
        what = f"--texts {given}, a folder," if Path(given).is_dir() else f"--texts {given}"
        raise CommandError(
            f"{what} has no column {column!r}, but {', '.join(map(repr, rows.column_names))}. Name the one "
            "with the texts by --text-column."
        )
    return rows.select_columns(column).rename_column(column, COLUMN) if column != COLUMN else rows
