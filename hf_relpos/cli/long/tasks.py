"""What readers of long texts are asked: find a document, find a pass key, name a topic. Nothing is trained."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_relpos.cli.long.readers import Ids, Reader

Row = dict[str, Any]

LEAST, MOST = 700, 4096  # tokens of a long document, special ones included

# Find a document: a sentence after this token, of so many words; runs of `RUN` words where there is no punctuation.
LATE, LEAST_WORDS, RUN = 620, 8, 24
QUERY = 126  # tokens of a query, at most
KEYS_SEED = 0
FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
FIRST_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "John")
LAST_NAMES = ("Baker", "Carter", "Evans", "Fisher", "Hughes", "Miller", "Parker", "Turner", "Walker", "Young")


@dataclass(frozen=True)
class Document:
    """A text as token ids without special tokens.

    Attributes:
        ids: The tokens.
        label: The name of its class.
        seen: Whether conversion may have seen it.
    """

    ids: tuple[int, ...]
    label: str
    seen: bool


def documents_of(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[tuple[str, str]], seen: Container[str]
) -> list[Document]:
    """Texts as documents, each once.

    Args:
        tokenizer: makes the ids.
        texts: with the names of their classes.
        seen: those that conversion may have seen.
    """
    labels: dict[str, str] = {}
    for text, label in texts:
        labels.setdefault(text, label)
    ids = tokenizer(list(labels), add_special_tokens=False)["input_ids"]
    return [Document(tuple(row), label, text in seen) for row, (text, label) in zip(ids, labels.items(), strict=True)]


# The documents that each task takes of a source, which has those to be seen before the others.


def long_ones(documents: Sequence[Document], most: int | None) -> list[Document]:
    """Documents to be found: all long ones that are unseen, then others; all there are without a bound."""
    long = [document for document in documents if LEAST <= len(document.ids) + 2 <= MOST]
    return sorted(long, key=lambda document: document.seen)[:most]


def known_and_asked(
    documents: Sequence[Document], known: int, asked: int | None
) -> tuple[list[Document], list[Document]]:
    """Documents whose labels are known, and unseen ones to be named; all of these without a bound."""
    parts = ([document for document in documents if document.seen is seen] for seen in (True, False))
    first, second = parts
    return first[:known], second[:asked]


def ranks(documents: Tensor, queries: Tensor) -> Tensor:
    """How many documents are at least as near to each query as its own, itself not counted: ``[queries]``.

    A tie counts against the reader: one that reads the same of all documents finds none.

    Args:
        documents: unit vectors, ``[documents, width]``.
        queries: unit vectors; the i-th is of the i-th document.
    """
    scores = queries @ documents.T
    own = scores.diagonal()[:, None]
    return (scores >= own).sum(1) - 1


def recall(found: Tensor, most: int) -> float:
    """The share of queries whose document is among the ``most`` nearest."""
    return round((found < most).double().mean().item(), 4)


# Find a document


def late_sentence(tokenizer: PreTrainedTokenizerBase, ids: Ids) -> str:
    """The longest sentence after the ``LATE``-th token; of a text without punctuation, the longest run of words.

    Raises:
        ValueError: if nothing of ``LEAST_WORDS`` words stands there.
    """
    tail = tokenizer.decode(ids[LATE:])
    sentences = re.split(r"(?<=[.!?])\s+", tail)
    if len(sentences) == 1:
        words = tail.split()
        sentences = [" ".join(words[start : start + RUN]) for start in range(0, len(words), RUN)]
    longest = max(sentences, key=len)
    if len(longest.split()) < LEAST_WORDS:
        raise ValueError(f"There is no sentence of {LEAST_WORDS} words after token {LATE} of a text of {len(ids)}.")
    return longest


def find(readers: Mapping[str, Reader], documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """A row per reader: recall at 1 and 10 among all documents, of all queries and of those of unseen documents."""
    texts = [late_sentence(tokenizer, document.ids) for document in documents]
    queries = [tuple(ids[:QUERY]) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    unseen = [number for number, document in enumerate(documents) if not document.seen]
    rows = []
    for name, reader in readers.items():
        found = ranks(reader([document.ids for document in documents]), reader(queries))
        rows.append(
            {
                "reader": name,
                "recall_1": recall(found, 1),
                "recall_10": recall(found, 10),
                "unseen_recall_1": recall(found[unseen], 1),
                "unseen_recall_10": recall(found[unseen], 10),
            }
        )
    return rows


# Pass keys


def passkeys(tokenizer: PreTrainedTokenizerBase, length: int, count: int) -> tuple[list[Ids], list[Ids]]:
    """Documents of LongEmbed's personalised pass keys, and their queries.

    Each document is filler but for the key of one person, before a sentence that is drawn evenly.

    Args:
        tokenizer: makes the ids, and has two special tokens for each text.
        length: tokens of each document, special ones included.
        count: how many; at most as many as there are names.
    """
    draw = random.Random(KEYS_SEED)
    names = draw.sample([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES], count)
    filler = tokenizer(list(FILLER), add_special_tokens=False)["input_ids"]
    documents, queries = [], []
    for name in names:
        key = draw.randrange(10_000, 100_000)
        hidden = f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}."
        ids = tokenizer(hidden, add_special_tokens=False)["input_ids"]
        room = length - 2 - len(ids)
        starts: list[int] = []
        around: list[int] = []
        for sentence in itertools.cycle(filler):
            if len(around) >= room:
                break
            starts.append(len(around))
            around += sentence
        place = draw.choice(starts)
        documents.append((*around[:place], *ids, *around[place:room]))
        queries.append(tuple(tokenizer(f"What is the pass key for {name}?", add_special_tokens=False)["input_ids"]))
    return documents, queries


def find_passkey(
    readers: Mapping[str, Reader], lengths: Sequence[int], count: int, tokenizer: PreTrainedTokenizerBase
) -> list[Row]:
    """A row per reader: the share of queries whose document is the nearest, by length of the documents."""
    made = {length: passkeys(tokenizer, length, count) for length in lengths}
    return [
        {
            "reader": name,
            **{str(length): recall(ranks(reader(texts), reader(queries)), 1)
               for length, (texts, queries) in made.items()},
        }
        for name, reader in readers.items()
    ]  # fmt: skip


# Topics


def nearest_label(
    readers: Mapping[str, Reader],
    training: Sequence[Document],
    documents: Sequence[Document],
    cuts: Sequence[int],
) -> list[Row]:
    """A row per reader: the share of documents whose nearest training document is of their class, by cut.

    Args:
        readers: by name.
        training: documents whose labels are known.
        documents: those to be named.
        cuts: tokens that are left of every document, special ones included.
    """
    rows = []
    for name, reader in readers.items():
        row: Row = {"reader": name}
        for cut in cuts:
            known, asked = (reader([each.ids[: cut - 2] for each in some]) for some in (training, documents))
            nearest = (asked @ known.T).argmax(1).tolist()
            right = sum(training[place].label == each.label for place, each in zip(nearest, documents, strict=True))
            row[str(cut)] = round(right / len(documents), 4)
        rows.append(row)
    return rows
