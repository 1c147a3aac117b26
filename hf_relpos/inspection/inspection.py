"""``inspect_model``: checks what it is given, and measures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from hf_relpos.errors import TextsError
from hf_relpos.inspection.attention import measure_attention
from hf_relpos.inspection.parameters import collect_learned, count_parameters
from hf_relpos.inspection.record import Inspection
from hf_relpos.modeling.report import patch_report
from hf_relpos.texts import Texts, in_words, read_texts

# So long are texts at most, in tokens: attention weights are held of a whole text, in every layer.
LONGEST = 256


def inspect_model(
    model: PreTrainedModel,
    texts: Texts | None = None,
    tokenizer: Any = None,
    *,
    column: str = "text",
    samples: int = 16,
    length: int | None = None,
) -> Inspection:
    """What a patched model has learned about positions; with texts, also how much its attention goes by them.

    Args:
        model: a patched model. It stays as it is.
        texts: without labels, for the model to read: a text file with an empty line between two texts, a data set of
            ``datasets`` or the id of one, or anything that gives strings.
        tokenizer: the model's, to read them with.
        column: the column of a data set that has the texts.
        samples: of so many texts at most.
        length: after so many tokens a text is cut off; 256 by default, or what the model can read.

    Returns:
        The record of it: ``print`` it, draw it (``figures``), or take its numbers.

    Raises:
        PatchStateError: if the model is not patched.
        TextsError: for texts that cannot be read, a tokenizer that is missing, or a ``samples`` or ``length`` that does
            not fit.
    """
    learned = collect_learned(model)
    report = patch_report(model)
    rows = None
    if texts is not None:
        limit = None if report.config.native == "drop" else report.trained_length
        rows = _rows(texts, tokenizer, column, samples, _length(length, limit))
    attention = None
    if rows is not None:
        with _in_eval_mode(model):
            attention = measure_attention(model, rows)
    return Inspection(report, count_parameters(model), learned, attention)


@contextmanager
def _in_eval_mode(model: PreTrainedModel) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _length(length: int | None, limit: int | None) -> int:
    if length is None:
        return min(LONGEST, limit or LONGEST)
    if length < 2 or (limit is not None and length > limit):
        bound = "at least 2" if limit is None else f"from 2 to {limit}, which is what the model can read"
        raise TextsError(f"`length` is {length}, but must be a number of tokens of {bound}.")
    return length


def _rows(texts: Texts, tokenizer: Any, column: str, samples: int, length: int) -> list[list[int]]:
    """The token ids of some texts, special ones included, without those that are too short to have two positions."""
    if samples < 1:
        raise TextsError(f"`samples` is {samples}, but must be at least 1.")
    if not callable(tokenizer):
        raise TextsError("inspect_model needs the model's tokenizer to read `texts`: give `tokenizer`.")
    encoded = (tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in read_texts(texts, column))
    rows = list(itertools.islice((ids for ids in encoded if len(ids) >= 2), samples))
    if not rows:
        raise TextsError(f"`texts` ({in_words(texts)}) has no text of two tokens or more. Give more text.")
    return rows
