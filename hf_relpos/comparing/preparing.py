"""From what a user asks for to a plan: checked, so that what can be refused is refused before anything is written."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from hf_relpos.comparing.classifier import load_classifier, load_tokenizer
from hf_relpos.comparing.errors import ComparisonError
from hf_relpos.comparing.marked_words import marked_words
from hf_relpos.comparing.plan import Plan
from hf_relpos.comparing.reading import labelled_texts, named_texts
from hf_relpos.comparing.settings import Settings, settings_of
from hf_relpos.comparing.training import Budget
from hf_relpos.errors import RelPosError
from hf_relpos.patching import is_patched, patch_model, unpatch_model

CLASSIFICATION, DISTANCE = "classification", "distance"
TASKS = (CLASSIFICATION, DISTANCE)
STEPS, EVALUATIONS, CONVERSION_STEPS = 100, 5, (100, 300)


def prepare(
    model: str | os.PathLike[str],
    train: Any,
    evaluation: Any,
    *,
    settings: Settings,
    task: str,
    seeds: Sequence[int],
    steps: int | None,
    epochs: float | None,
    max_length: int,
    batch_size: int,
    learning_rate: float,
    added_learning_rate: float,
    limit: int | None,
    eval_limit: int | None,
    conversion_steps: Sequence[int] | None,
    memory: bool,
    name: str | None,
) -> Plan:
    """The plan of :func:`hf_relpos.compare`, whose arguments these are.

    The model is loaded, and given each setting once.

    Raises:
        ComparisonError: for what cannot be compared.
        RelPosError: what :func:`hf_relpos.patch_model` and :func:`hf_relpos.convert` refuse.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise ComparisonError(
            f"`model` is a {type(model).__name__}, but must be a folder, or the id of a model on the Hub: each run "
            "loads it anew. Save yours into a folder with save_pretrained, and its tokenizer too."
        )
    if task not in TASKS:
        raise ComparisonError(f"`task` is {task!r}, but must be one of {', '.join(map(repr, TASKS))}.")
    if steps is not None and epochs is not None:
        raise ComparisonError(f"`steps` is {steps} and `epochs` is {epochs}: give one of the two.")
    whole = {"steps": steps, "batch_size": batch_size, "limit": limit, "eval_limit": eval_limit}
    rates = {"epochs": epochs, "learning_rate": learning_rate, "added_learning_rate": added_learning_rate}
    for key, number in {**whole, **rates}.items():
        if number is not None and not (0 < number < math.inf and (key in rates or isinstance(number, int))):
            raise ComparisonError(
                f"`{key}` is {number}, but must be a {'' if key in rates else 'whole '}number above 0."
            )
    if not seeds or len(set(seeds)) < len(seeds) or not all(_is_seed(seed) for seed in seeds):
        raise ComparisonError(f"`seeds` is {list(seeds)}, but must be different whole numbers from 0 to {2**32 - 1}.")
    chosen = settings_of(settings)
    conversion = _conversion_steps(conversion_steps, any(setting.converted for setting in chosen))
    source = str(Path(model).resolve()) if Path(model).is_dir() else str(model)
    with _loading(source):
        tokenizer = load_tokenizer(source, max_length, any(setting.keeps_native for setting in chosen))
    if task == DISTANCE:
        if evaluation is not None:
            raise ComparisonError(f"`evaluation` was given, but the task {DISTANCE!r} takes a part of `train` itself.")
        data = marked_words(*named_texts(train), lambda text: len(tokenizer(text)["input_ids"]) <= max_length)
    else:
        data = labelled_texts(train, evaluation)
    data = data.limited(limit, eval_limit)
    if not data.eval:
        raise ComparisonError(
            f"{data.name} has {len(data.train)} texts to learn from, and none to measure on: a fifth of each class is, "
            "if nothing else is given. Give `evaluation`, or more texts."
        )
    if steps is None:
        steps = STEPS if epochs is None else math.ceil(len(data.train) / batch_size * epochs)
    budget = Budget(
        max_steps=steps,
        evaluations=min(EVALUATIONS, steps),
        max_length=max_length,
        batch_size=batch_size,
        learning_rate=learning_rate,
        added_learning_rate=added_learning_rate,
    )
    plan = Plan(
        model=source,
        name=name or (Path(source).name if Path(source).is_dir() else source),
        task=task,
        data=data,
        settings=chosen,
        seeds=tuple(seeds),
        budget=budget,
        conversion_steps=conversion,
        memory=memory,
    )
    _try_settings(plan)
    return plan


def _is_seed(given: object) -> bool:
    return isinstance(given, int) and 0 <= given < 2**32


def _conversion_steps(given: Sequence[int] | None, needed: bool) -> tuple[int, int] | None:
    """What is given, or the default; None where nothing is converted."""
    if given is None:
        return CONVERSION_STEPS if needed else None
    if not needed:
        raise ComparisonError(f"`conversion_steps` is {list(given)}, but no setting is `converted`. Leave it out.")
    if len(given) != 2 or min(given) < 0 or not any(given):
        raise ComparisonError(
            f"`conversion_steps` is {list(given)}, but must be two whole numbers, one of them above 0 at least."
        )
    return given[0], given[1]


def _try_settings(plan: Plan) -> None:
    """Load the model and give it each setting, for what is refused then."""
    with _loading(plan.model):
        model = load_classifier(plan.model, plan.tokenizer, plan.data.labels, plan.seeds[0])
    if is_patched(model):
        raise ComparisonError(
            f"The model {plan.model} has relative positions already, but a comparison gives them to a model without. "
            "Give the model as it was before."
        )
    for setting in plan.settings:
        if setting.relpos is not None:
            unpatch_model(patch_model(model, setting.relpos))


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """What Transformers raises of a model that it cannot load becomes one line."""
    try:
        yield
    except RelPosError:
        raise
    except Exception as error:
        raise ComparisonError(
            f"The model {source} cannot be loaded. Give a folder with a model and its tokenizer, or the id of one on "
            f"the Hub. The reason ({type(error).__name__}): {shorten(str(error), 300)}"
        ) from error
