"""A task that cannot be done without positions, made of any texts: how far apart do two marked words stand?

A marker stands before two words of a text. Which words they are says nothing about the answer, so a model that reads
its words in no order can only guess.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator

from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.examples import SPLIT_SEED, Example, TextData, split

MARKER = "*"
WORDS = 24  # of a text
CLASSES = ((1, 4), (12, 18))  # from so many words to so many
MOST = 5000  # passages


def marked_words(name: str, texts: Iterable[str], fits: Callable[[str], bool]) -> TextData:
    """At most ``MOST`` passages of ``WORDS`` words, two of them marked; the class is how far apart these stand.

    No word is in two passages, so what is measured on was not learned from.

    Args:
        name: what the texts are called.
        texts: whatever they are about; all passages of them are taken in turn.
        fits: whether a passage can be read to its end.

    Raises:
        ComparisonError: if the texts come to too few passages to learn from and to measure on.
    """
    draw = random.Random(SPLIT_SEED)
    passages: list[Example] = []
    for words in itertools.takewhile(lambda _: len(passages) < MOST, _words_of(texts)):
        number = len(passages) % len(CLASSES)
        passage = _marked(words, draw.randint(*CLASSES[number]), draw)
        if fits(passage):
            passages.append(Example(passage, number))
    labels = [f"{least} to {furthest} words apart" for least, furthest in CLASSES]
    data = TextData(f"marked words in {name}", labels, *split(passages, len(labels)))
    if min(len({example.label for example in part}) for part in (data.train, data.eval)) < len(labels):
        raise ComparisonError(
            f"The texts of {name} come to {len(passages)} passages of {WORDS} words that can be read to their end, "
            "which are too few to make a task of. Give more or longer texts, or a larger `max_length`."
        )
    return data


def _words_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """The words of one passage after the other."""
    for text in texts:
        words = text.replace(MARKER, " ").split()
        for first in range(0, len(words) - WORDS + 1, WORDS):
            yield words[first : first + WORDS]


def _marked(words: list[str], distance: int, draw: random.Random) -> str:
    first = draw.randrange(len(words) - distance)
    marked = {first, first + distance}
    return " ".join(f"{MARKER} {word}" if place in marked else word for place, word in enumerate(words))
