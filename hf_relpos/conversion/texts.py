"""Unlabelled texts, from wherever they come, as documents of token ids."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_relpos.conversion.errors import ConversionError

Texts = str | os.PathLike[str] | Iterable[Any]

_AT_ONCE = 64  # texts given to the tokenizer together
_HELD_OUT, _HELD_OUT_SHARE = 32, 0.05  # documents to measure on: at most so many, and about this share of all


def read_documents(texts: Texts, tokenizer: Any, tokens: int, column: str = "text") -> list[list[int]]:
    """The first texts of a source, each as its token ids without special tokens.

    Args:
        texts: a text file (an empty line stands between two texts), the id of a data set on the Hub or its folder, a
            ``datasets.Dataset`` or ``IterableDataset``, or anything else that gives strings one by one.
        tokenizer: of the model.
        tokens: how many are enough; the source is read no further.
        column: the column of a data set.

    Returns:
        Documents of at least two tokens.

    Raises:
        ConversionError: if there is no such source, it is empty, or no text in it has two tokens; if it holds something
            other than texts.
    """
    documents: list[list[int]] = []
    found, read = 0, 0
    source = iter(_texts(texts, column))
    while read < tokens and (some := list(itertools.islice(source, _AT_ONCE))):
        found += len(some)
        for ids in tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]:
            if len(ids) >= 2 and read < tokens:
                documents.append(list(ids))
                read += len(ids)
    if not documents:
        reason = (
            f"None of the {found} texts in it has two tokens or more, which is the least to tell positions apart by."
            if found
            else "There is no text in it."
        )
        raise ConversionError(f"convert cannot read `texts` ({_in_words(texts)}). {reason} Give more text.")
    return documents


def split(documents: list[list[int]], seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Documents to learn from, and some to measure on; the same ones where there is only one."""
    drawn = random.Random(f"{seed} held out").sample(documents, len(documents))
    count = min(_HELD_OUT, max(1, round(_HELD_OUT_SHARE * len(drawn))))
    return (drawn[count:], drawn[:count]) if len(drawn) > count else (drawn, drawn)


def _texts(texts: Texts, column: str) -> Iterator[str]:
    """The texts of a source that are not blank."""
    for number, text in enumerate(_rows(texts, column)):
        if not isinstance(text, str):
            raise ConversionError(
                f"convert cannot read `texts` ({_in_words(texts)}): number {number} is {_short(text)}, but must be a "
                "string."
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
            raise ConversionError(
                f"convert cannot read `texts` ({_in_words(texts)}): give a text file, a data set, its id on the Hub, "
                "or a list of strings."
            )
        return texts
    if isinstance(columns, Mapping):
        raise ConversionError(
            f"convert cannot read `texts` ({_in_words(texts)}): it has the parts {', '.join(map(repr, columns))}. Give "
            "one of them."
        )
    if column not in columns:
        raise ConversionError(
            f"convert cannot read `texts` ({_in_words(texts)}): it has no column {column!r}, but "
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
        raise ConversionError(f"convert cannot read `texts` ({path}): it is not text in UTF-8 ({error.reason}).") from (
            error
        )


def _load(name: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, split="train", streaming=True)
    except Exception as error:  # `datasets` raises whatever its readers and the Hub's client raise
        raise ConversionError(
            f"convert cannot read `texts` ({name!r}): there is no such file here, and no such data set with a part "
            f"'train' could be loaded: {' '.join(str(error).split())}"
        ) from error


def _in_words(texts: Any) -> str:
    return repr(str(texts)) if isinstance(texts, (str, os.PathLike)) else f"a {type(texts).__name__}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]} ..."
