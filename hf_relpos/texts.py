"""Texts from wherever they come, one by one, so that a large source is read no further than is needed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_relpos.errors import TextsError

logger = logging.get_logger(__name__)

_ENDINGS = (".txt", ".text", ".md", ".csv", ".tsv", ".json", ".jsonl")

Texts = str | os.PathLike[str] | Iterable[Any]


def read_texts(texts: Texts, column: str = "text") -> Iterator[str]:
    """The texts of a source that are not blank, one by one.

    Args:
        texts: a text file (an empty line stands between two texts), the id of a data set on the Hub or its folder, a
            ``datasets.Dataset`` or ``IterableDataset``, or anything else that gives strings one by one.
        column: the column of a data set.

    Raises:
        TextsError: if there is no such source, or it holds something other than texts.
    """
    for number, text in enumerate(_rows(texts, column)):
        if not isinstance(text, str):
            raise TextsError(
                f"`texts` ({in_words(texts)}) cannot be read: number {number} is {_short(text)}, but must be a string."
            )
        if text.strip():
            yield text


def _rows(texts: Texts, column: str) -> Iterable[Any]:
    what = in_words(texts)
    if isinstance(texts, (str, os.PathLike)):
        path = Path(texts)
        if not str(texts).strip():
            raise TextsError("`texts` is an empty name. Give a text file, the id of a data set on the Hub, or texts.")
        if path.is_file():
            return _paragraphs(path)
        texts = _load(str(texts))
    columns = getattr(texts, "column_names", None)
    if columns is None:
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise TextsError(
                f"`texts` ({what}) cannot be read: give a text file, a data set, its id on the Hub, "
                "or a list of strings."
            )
        return texts
    if isinstance(columns, Mapping):
        raise TextsError(
            f"`texts` ({what}) cannot be read: it has the parts {', '.join(map(repr, columns))}. Give one of them."
        )
    if column not in columns:
        raise TextsError(
            f"`texts` ({what}) cannot be read: it has no column {column!r}, but "
            f"{', '.join(map(repr, columns))}. Name the one with the texts as `column`."
        )
    return _column(texts, column)


def _column(rows: Any, column: str) -> Iterator[Any]:
    return (row[column] for row in rows)


def _paragraphs(path: Path) -> Iterator[str]:
    """The texts of a file, an empty line between two; line by line, as the file may be large."""
    found, text = 0, ""
    try:
        with path.open(encoding="utf-8") as file:
            for blank, lines in itertools.groupby(file, key=lambda line: not line.strip()):
                if not blank:
                    found, text = found + 1, "".join(lines)
                    yield text
    except UnicodeDecodeError as error:
        raise TextsError(f"`texts` ({path}) cannot be read: it is not text in UTF-8 ({error.reason}).") from error
    lines_read = len(text.splitlines())
    if found == 1 and lines_read > 1:
        logger.warning_once(
            "hf_relpos: %s is read as one text of %d lines. Where each line is a text, put empty lines between them.",
            path, lines_read,
        )  # fmt: skip


def is_missing_file(name: str) -> bool:
    """Whether a name is that of a text file that is not here: it ends like one, or can be no id on the Hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if Path(name).exists():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return True
    return Path(name).suffix.lower() in _ENDINGS


def load_data_set(name: str) -> Any:
    """The part ``train`` of a data set on the Hub or in a folder, to be read row by row.

    `datasets` raises whatever its readers and the Hub's client raise.
    """
    import datasets

    return datasets.load_dataset(name, split="train", streaming=True)


def _load(name: str) -> Any:
    if is_missing_file(name):
        raise TextsError(
            f"`texts` ({name!r}) cannot be read: there is no such file here. Give the path of a text file, or the id "
            "of a data set on the Hub."
        )
    try:
        return load_data_set(name)
    except Exception as error:
        raise TextsError(
            f"`texts` ({in_words(name)}) cannot be read: there is no such file here, and no such data set with a part "
            f"'train' could be loaded: {' '.join(str(error).split())}"
        ) from error


def in_words(texts: Any) -> str:
    """Which texts these are, for a message."""
    if isinstance(texts, (str, os.PathLike)):
        return f"{str(texts)!r}, a folder" if Path(texts).is_dir() else repr(str(texts))
    return f"a {type(texts).__name__}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]} ..."
