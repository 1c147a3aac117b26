"""Unlabelled texts as documents of token ids."""

from __future__ import annotations

import itertools
import random
from typing import Any

from transformers.utils import logging

from hf_relpos.errors import TextsError
from hf_relpos.texts import Texts, in_words, read_texts

logger = logging.get_logger(__name__)

_AT_ONCE = 64  # texts given to the tokenizer together
_HELD_OUT, _HELD_OUT_SHARE = 32, 0.05  # documents to measure on: at most so many, and about this share of all


def read_documents(
    texts: Texts, tokenizer: Any, tokens: int, column: str = "text", longest: int = 0
) -> list[list[int]]:
    """The first texts of a source, each as its token ids without special tokens.

    Args:
        texts: what :func:`hf_relpos.texts.read_texts` takes.
        tokenizer: of the model.
        tokens: how many are enough; the source is read no further.
        column: the column of a data set.
        longest: how many tokens the longest sequence takes, no more than ``tokens``.

    Returns:
        Documents of at least two tokens.

    Raises:
        TextsError: if there is no such source, it is empty, or no text in it has two tokens; if all of them do not fill
            the longest sequence; if it holds something other than texts.
    """
    documents: list[list[int]] = []
    found, read = 0, 0
    source = iter(read_texts(texts, column))
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
        raise TextsError(f"`texts` ({in_words(texts)}) cannot be used. {reason} Give more text.")
    if read < longest:
        raise TextsError(
            f"`texts` ({in_words(texts)}) has {read} tokens in all, and the longest of `lengths` takes {longest}: "
            "nothing could be learned of it. Give more text, or smaller lengths."
        )
    return documents


def split(documents: list[list[int]], seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Documents to learn from, and some to measure on; the same ones where there is only one."""
    drawn = random.Random(f"{seed} held out").sample(documents, len(documents))
    count = min(_HELD_OUT, max(1, round(_HELD_OUT_SHARE * len(drawn))))
    return (drawn[count:], drawn[:count]) if len(drawn) > count else (drawn, drawn)


def warn_of_short_texts(held_out: list[list[int]], longest: int) -> None:
    """Say so where the texts to measure on do not fill the longest sequence.

    Args:
        held_out: documents of token ids.
        longest: how many of them the longest sequence takes.
    """
    tokens = sum(map(len, held_out))
    if tokens < longest:
        logger.warning(
            f"convert: the texts held out to measure on ({len(held_out)}) have {tokens} tokens in all, and the longest "
            f"of the lengths takes {longest}. At lengths that they do not fill, the report tells of shorter sequences. "
            "Give more text, or smaller lengths."
        )
