"""Labelled texts in two parts: to learn from, and to measure on."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hf_relpos.comparing.errors import ComparisonError

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


def labelled(
    name: str,
    train: Sequence[tuple[str, str]],
    evaluation: Sequence[tuple[str, str]] | None = None,
    given: tuple[str, str] = ("`train`", "`evaluation`"),
) -> TextData:
    """Pairs of text and label as numbered examples.

    Args:
        name: what the data is called.
        train: to learn from.
        evaluation: to measure on; a fifth of each class of ``train`` where it is None.
        given: what the user knows the two by.

    Returns:
        The examples. Labels are sorted: by value if all are whole numbers, else as text.

    Raises:
        ComparisonError: for fewer than two labels, or labels that there is nothing to learn of.
    """
    labels = _sorted({label for _, label in train})
    if len(labels) < 2:
        has = f"only the label {labels[0]!r}" if labels else "no rows"
        raise ComparisonError(f"{given[0]} has {has}. A classifier needs at least two different labels.")
    number = {label: index for index, label in enumerate(labels)}
    if evaluation is None:
        return TextData(name, labels, *split([Example(text, number[label]) for text, label in train], len(labels)))
    unseen = _sorted({label for _, label in evaluation} - set(labels))
    if unseen:
        raise ComparisonError(
            f"{given[1]} has labels that {given[0]} has not: {listed(unseen)}. "
            f"The labels to train on are {listed(labels)}. "
            "Add examples of the missing ones, or drop those rows."
        )
    parts = ([Example(text, number[label]) for text, label in rows] for rows in (train, evaluation))
    return TextData(name, labels, *(by_class(part, len(labels)) for part in parts))


def _sorted(labels: Collection[str]) -> list[str]:
    as_numbers = all(re.fullmatch(r"-?\d+", label) for label in labels)
    return sorted(labels, key=int if as_numbers else None)


def listed(values: Sequence[str]) -> str:
    """At most ten of the values, quoted."""
    shown = ", ".join(repr(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
