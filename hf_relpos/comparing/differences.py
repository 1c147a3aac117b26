"""What tells a plan from another, in the words that a user knows it by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# A path in the record of a plan -> what the user knows it by. What has no name here is told by its path.
NAMES = {
    "model": "`model`",
    "weights": "digest of the model's files",
    "task": "`task`",
    "data.name": "name of the texts",
    "data.labels": "labels",
    "data.train": "number of texts to learn from (`limit`)",
    "data.eval": "number of texts to measure on (`eval_limit`)",
    "data.sha256": "digest of the texts",
    "settings": "`settings`",
    "seeds": "`seeds`",
    "budget.max_steps": "`steps`",
    "budget.evaluations": "number of measurements while training",
    "budget.max_length": "`max_length`",
    "budget.batch_size": "`batch_size`",
    "budget.learning_rate": "`learning_rate`",
    "budget.added_learning_rate": "`added_learning_rate`",
    "conversion_steps": "`conversion_steps`",
    "memory": "`memory`",
}
_DIGESTS, _SHOWN = ("weights", "data.sha256"), 8  # characters of a digest


def differences(kept: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Each thing in which two plans differ, with what it was and what it is.

    Args:
        kept: the record of the plan that was begun, which may lack things.
        given: the record of the plan that was asked for.
    """
    return [
        f"{NAMES.get(path, path)} was {_shown(path, was)} and is {_shown(path, now)}"
        for path, was, now in _leaves("", kept, given)
    ]


def _leaves(path: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of all that differs, as deep as both have names."""
    if path == "settings":
        was, now = (_by_name(one) for one in (was, now))
        if list(was) != list(now):
            was, now = list(was), list(now)
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in now:
            yield from _leaves(f"{path}.{name}" if path else name, was.get(name), now[name])
    elif was != now:
        yield path, was, now


def _by_name(settings: Any) -> dict[str, Any]:
    """Settings by their names; none where there is no list of them."""
    listed = settings if isinstance(settings, list) else []
    return {str(one.get("name")): one for one in listed if isinstance(one, Mapping)}


def _shown(path: str, value: Any) -> str:
    return str(value)[:_SHOWN] if path in _DIGESTS else repr(value)
