"""Whose text a folder's `README.md` is, and how metadata is added to it without touching the text.

A card that nobody but the package has written can be written again when the model changes. It says so itself, with a
digest of its text: one edited character, and the card is the editor's and stays. So a text written by hand is never
lost, whoever forgot to remove which comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

_MARK = re.compile(r"<!-- Written by hf_relpos (?P<when>[\w ]+) \(digest (?P<digest>[0-9a-f]{16})\)[^>]*-->\n")
_HEADER = re.compile(r"\A---\r?\n.*?\n---\r?\n", re.DOTALL)

# When a card was written. One with a Trainer's numbers is only replaced by one with newer numbers.
ON_SAVING = "on saving"
BY_TRAINER = "from what the Trainer knew"

# What Transformers writes into the cards that it makes up itself.
_MADE_UP = {
    ON_SAVING: "This is the model card of a 🤗 transformers model that has been pushed on the Hub. This model card has "
    "been automatically generated.",
    BY_TRAINER: "<!-- This model card has been generated automatically according to the information the Trainer had "
    "access to.",
}


def mark(text: str, when: str) -> str:
    """A card's text with the comment that tells :func:`is_untouched` that it is as it was written."""
    header = _HEADER.match(text)
    start = header.end() if header else 0
    comment = (
        f"<!-- Written by hf_relpos {when} (digest {_digest(text)}), and written again when the model changes. Once "
        "you have edited it, it is yours and stays as it is. -->\n"
    )
    return text[:start] + comment + text[start:]


def is_untouched(text: str, *when: str) -> bool:
    """Whether a card was written by a program at one of these occasions, and by nobody since: it may be replaced."""
    found = _MARK.search(text)
    if found is not None:
        same = found["digest"] == _digest(text[: found.start()] + text[found.end() :])
        return same and found["when"] in when
    return any(_MADE_UP[one] in text for one in when)


def completed(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with what it lacks: new keys, and new entries of lists. What is there stays."""
    result = {key: value for key, value in values.items() if value is not None}
    for key, value in more.items():
        if result.get(key) is None:
            result[key] = value
        elif key in ("tags", "datasets", "metrics") and isinstance(value, list):
            there = result[key] if isinstance(result[key], list) else [result[key]]
            result[key] = [*there, *(entry for entry in value if entry not in there)]
    return result


def _digest(text: str) -> str:
    return sha256("\n".join(line.rstrip() for line in text.strip().splitlines()).encode()).hexdigest()[:16]
