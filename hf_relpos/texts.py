"""Texts from wherever they come, one by one, so that a large source is read no further than is needed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_relpos.errors import TextsError

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
    if isinstance(texts, (str, os.PathLike)):
        path = Path(texts)
        if path.is_file():
            return _paragraphs(path)
        texts = _load(str(texts))
    columns = getattr(texts, "column_names", None)
    if columns is None:
        if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
            raise TextsError(
                f"`texts` ({in_words(texts)}) cannot be read: give a text file, a data set, its id on the Hub, "
                "or a list of strings."
            )
        return texts
    if isinstance(columns, Mapping):
        raise TextsError(
            f"`texts` ({in_words(texts)}) cannot be read: it has the parts {', '.join(map(repr, columns))}. Give "
            "one of them."
        )
    if column not in columns:
        raise TextsError(
            f"`texts` ({in_words(texts)}) cannot be read: it has no column {column!r}, but "
            f"{', '.join(map(repr, columns))}. Name the one with the texts as `column`."
        )
    return _column(texts, column)


def _column(rows: Any, column: str) -> Iterator[Any]:
    return (row[column] for row in rows)


def _paragraphs(path: Path) -> Iterator[str]:
    """The texts of a file, an empty line between two; line by line, as the file may be large."""
    try:
        with path.open(encoding="utf-8") as file:
            for blank, lines in itertools.groupby(file, key=lambda line: not line.strip()):
                if not blank:
                    yield "".join(lines)
    except UnicodeDecodeError as error:
        raise TextsError(f"`texts` ({path}) cannot be read: it is not text in UTF-8 ({error.reason}).") from (error)


def _load(name: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, split="train", streaming=True)
    except Exception as error:  # `datasets` raises whatever its readers and the Hub's client raise
        raise TextsError(
            f"`texts` ({name!r}) cannot be read: there is no such file here, and no such data set with a part "
            f"'train' could be loaded: {' '.join(str(error).split())}"
        ) from error


def in_words(texts: Any) -> str:
    """Which texts these are, for a message."""
    return repr(str(texts)) if isinstance(texts, (str, os.PathLike)) else f"a {type(texts).__name__}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]} ..."
