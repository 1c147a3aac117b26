"""Labelled texts in two parts: to learn from, and to measure on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SPLIT_SEED = 0
EVAL_SHARE = 0.2


@dataclass(frozen=True)
class Example:
    """One text and the number of its class."""

    text: str
    label: int


@dataclass(frozen=True)
class TextData:
    """Labelled texts in two parts.

    Attributes:
        name: What the data is called in tables and cards.
        labels: The class names; an example's `label` is an index into them.
        train: Examples to learn from.
        eval: Examples to measure on.
    """

    name: str
    labels: list[str]
    train: list[Example]
    eval: list[Example]

    def limited(self, train_samples: int | None, eval_samples: int | None) -> TextData:
        """The same data with at most so many examples; the classes keep their shares."""
        return TextData(self.name, self.labels, self.train[:train_samples], self.eval[:eval_samples])


def split(examples: Sequence[Example], classes: int) -> tuple[list[Example], list[Example]]:
    """Examples to learn from, and a fifth of each class to measure on; the same ones whatever the seed of a run."""
    train: list[list[Example]] = []
    evaluation: list[list[Example]] = []
    for group in _groups(examples, classes):
        random.Random(SPLIT_SEED).shuffle(group)
        count = round(len(group) * EVAL_SHARE)
        evaluation.append(group[:count])
        train.append(group[count:])
    return interleaved(train), interleaved(evaluation)


def by_class(examples: Sequence[Example], classes: int) -> list[Example]:
    """The examples in an order in which every beginning holds the classes in their proportions."""
    return interleaved(_groups(examples, classes))


def interleaved(groups: Sequence[Sequence[Example]]) -> list[Example]:
    """The groups merged evenly, so that every beginning of the list holds the groups in their proportions."""
    ranked = [
        ((place + 0.5) / len(group), number, example)
        for number, group in enumerate(groups)
        for place, example in enumerate(group)
    ]
    return [example for _, _, example in sorted(ranked, key=lambda item: item[:2])]


def _groups(examples: Sequence[Example], classes: int) -> list[list[Example]]:
    return [[example for example in examples if example.label == number] for number in range(classes)]
