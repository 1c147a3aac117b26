"""The data that a user gives: texts with labels, or without."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any

from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.examples import TextData, labelled
from hf_relpos.texts import read_texts

NAMELESS = "your texts"


def labelled_texts(train: Any, evaluation: Any = None) -> TextData:
    """Texts with labels.

    Args:
        train: to learn from: ``TextData``, a ``datasets.Dataset`` with the columns ``text`` and ``label``, or pairs.
        evaluation: the same, to measure on; a fifth of ``train`` where it is None.

    Raises:
        ComparisonError: for what is none of these.
    """
    if isinstance(train, TextData):
        if evaluation is not None:
            raise ComparisonError("`evaluation` was given, but `train` is a TextData, which has texts to measure on.")
        return train
    measured = None if evaluation is None else _pairs("evaluation", evaluation)
    return labelled(_name_of(train), _pairs("train", train), measured)


def named_texts(given: Any) -> tuple[str, Iterable[str]]:
    """What texts are called, and the texts: those of ``TextData``, or what :func:`read_texts` takes."""
    if isinstance(given, TextData):
        return given.name, [example.text for example in (*given.train, *given.eval)]
    return _name_of(given), read_texts(given)


def _pairs(option: str, rows: Any) -> list[tuple[str, str]]:
    """Pairs of text and label, both as text."""
    columns = getattr(rows, "column_names", None)
    if columns is not None:
        if not {"text", "label"} <= set(columns):
            raise ComparisonError(
                f"`{option}` has the columns {', '.join(map(repr, columns))}, but must have 'text' and 'label'. Rename "
                "yours."
            )
        name = getattr(rows.features["label"], "int2str", str)
        rows = zip(rows["text"], rows["label"], strict=True)
    else:
        name = str
    pairs = []
    for row in [None] if isinstance(rows, str) or not isinstance(rows, Iterable) else rows:
        match row:
            case (str() as text, (str() | int()) as label):
                pairs.append((text, name(label)))
            case _:
                wrong = shorten(repr(rows if row is None else row), 100)
                raise ComparisonError(
                    f"`{option}` must be a data set with the columns 'text' and 'label', or pairs of these: of a text "
                    f"and of a name or a whole number, and not {wrong}."
                )
    return pairs


def _name_of(given: Any) -> str:
    """The name of a data set that has one, of a file or an id."""
    if isinstance(given, (str, os.PathLike)):
        return Path(given).name if Path(given).exists() else str(given)
    return getattr(getattr(given, "info", None), "dataset_name", None) or NAMELESS
