"""Reading a user's file of texts: what is wrong with it is said of the file, and of the option that names it."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_relpos.cli.errors import CommandError

if TYPE_CHECKING:
    from datasets import Dataset

# How the name of a file ends -> the reader of `datasets` for it.
TABLES = {"csv": "csv", "json": "json", "jsonl": "json"}

_CHUNK = 2**20


def check_ending(option: str, file: str, kinds: Mapping[str, str] = TABLES) -> None:
    """Raise `CommandError` for a file whose name says that it is of another kind."""
    if Path(file).suffix[1:] not in kinds:
        raise CommandError(f"{option} {file}: expected a file that ends in .{', .'.join(kinds)}.")


def read_file(
    option: str, file: str, kinds: Mapping[str, str] = TABLES, cache_dir: str | Path | None = None, **options: Any
) -> Dataset:
    """The rows of a file.

    Args:
        option: The option that names it, `--train-file` for one.
        file: Its path or address.
        kinds: How its name may end, and the reader of `datasets` for each ending.
        cache_dir: Where `datasets` keeps what it has read; its own place by default.
        **options: For the reader.

    Raises:
        CommandError: If there is no such file, if it is not text in UTF-8 of one of these kinds, or has no rows.
    """
    import datasets

    check_ending(option, file, kinds)
    if "://" not in file:
        _check_text(f"{option} {file}", Path(file))
    kind = kinds[Path(file).suffix[1:]]
    cache = None if cache_dir is None else str(cache_dir)
    try:
        return datasets.load_dataset(kind, data_files=file, split="train", cache_dir=cache, **options)
    except Exception as error:  # `datasets` wraps whatever its readers raise
        if "corresponds to no data" in str(error):  # its words for a file without rows
            header = ": its first line is taken for the names of the columns" if kind == "csv" else ""
            raise CommandError(f"{option} {file} has no rows{header}.") from error
        reason = " ".join(str(error.__cause__ or error).split()) or "nothing in it could be read"
        raise CommandError(f"{option} {file} cannot be read as {kind.upper()}: {reason}") from error


def _check_text(given: str, path: Path) -> None:
    """Raise `CommandError` unless there is a file, of text in UTF-8, with something in it."""
    if path.is_dir():
        raise CommandError(f"{given} is a folder. Give a file.")
    if not path.exists():
        raise CommandError(f"{given} does not exist. Give the path of a file.")
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, empty, chunk = 0, True, b" "
    try:
        with path.open("rb") as file:
            while chunk:
                chunk = file.read(_CHUNK)
                text = decoder.decode(chunk, final=not chunk)
                if "\0" in text:
                    raise CommandError(f"{given} is not a text file: it has bytes of value 0.")
                before, empty = before + len(chunk), empty and not text.strip()
    except UnicodeDecodeError as error:
        place = before + len(chunk) - len(error.object) + error.start
        raise CommandError(
            f"{given} is not text in UTF-8: byte {place} is {error.object[error.start]:#04x} ({error.reason}). "
            "Save it as UTF-8."
        ) from error
    except OSError as error:
        raise CommandError(f"{given} cannot be opened: {error.strerror}.") from error
    if empty:
        raise CommandError(f"{given} is empty.")
