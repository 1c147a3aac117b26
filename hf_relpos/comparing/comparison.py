"""``compare`` and ``sweep``: a plan, its runs one after the other, and what they came to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from hf_relpos.comparing.apart import run_apart
from hf_relpos.comparing.converting import converted_model
from hf_relpos.comparing.keeping import Folder
from hf_relpos.comparing.plan import Plan
from hf_relpos.comparing.preparing import prepare
from hf_relpos.comparing.progress import PlanProgress
from hf_relpos.comparing.record import Comparison
from hf_relpos.comparing.run import run_here
from hf_relpos.comparing.settings import UNPATCHED, USUAL, Settings, with_distance


def compare(
    model: str | PathLike[str],
    train: Any,
    evaluation: Any = None,
    *,
    settings: Settings = USUAL,
    task: str = "classification",
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    epochs: float | None = None,
    max_length: int = 128,
    batch_size: int = 8,
    learning_rate: float = 1e-4,
    added_learning_rate: float = 2e-3,
    limit: int | None = None,
    eval_limit: int | None = 256,
    conversion_steps: Sequence[int] | None = None,
    memory: bool = False,
    name: str | None = None,
    output_dir: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Comparison:
    """One model, fine-tuned on one task with several position settings and seeds; all else is the same.

    With a seed, every setting starts from the same head and sees the same texts in the same order.

    Args:
        model: folder, or id on the Hub, of a pretrained model that is not patched.
        train: what is learned from: for ``"classification"`` a ``datasets.Dataset`` with the columns ``text`` and
            ``label``, or pairs of the two; for ``"distance"`` texts, as :func:`hf_relpos.convert` takes them.
        evaluation: the same for ``"classification"``, to measure on; by default a fifth of each class of ``train``.
        settings: words that name them (:func:`hf_relpos.comparing.settings.parse`), or choices by names of your own,
            None for the model as it is.
        task: ``"classification"``, or ``"distance"``: how far apart two marked words stand, which cannot be told
            without positions.
        seeds: of the new head, the order of the texts, and dropout.
        steps: of each run; 100 by default.
        epochs: the same, told by how often all texts are seen.
        max_length: tokens after which a text is cut off.
        batch_size: texts per step.
        learning_rate: the highest, of the pretrained parameters.
        added_learning_rate: the highest, of the parameters that a patch adds.
        limit: texts to learn from at most.
        eval_limit: texts to measure on at most.
        conversion_steps: of :func:`hf_relpos.convert`, for the settings ``converted``, which is done once for all
            seeds; (100, 300) by default.
        memory: do each run in a process of its own, and measure the memory of its steps.
        name: what the model is called in tables; by default the folder's name, or the id.
        output_dir: where the plan and each finished run are kept, so that the same call goes on where it was
            interrupted; None keeps nothing.
        progress: show a bar over all runs.

    Returns:
        The record of it: ``print`` it, ``save`` it, or take its numbers. On one machine, equal seeds give equal ones.

    Raises:
        ComparisonError: (a ``ValueError``) for what cannot be compared, and a folder with files of others or another
            plan.
        RelPosError: what :func:`hf_relpos.patch_model` and :func:`hf_relpos.convert` refuse.
    """
    plan = prepare(
        model, train, evaluation, settings=settings, task=task, seeds=seeds, steps=steps, epochs=epochs,
        max_length=max_length, batch_size=batch_size, learning_rate=learning_rate,
        added_learning_rate=added_learning_rate, limit=limit, eval_limit=eval_limit,
        conversion_steps=conversion_steps, memory=memory, name=name,
    )  # fmt: skip
    with ExitStack() as stack:
        if output_dir is None:
            output_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf_relpos_compare_"))
        return _carry_out(plan, Folder(Path(output_dir).resolve(), plan), progress)


def sweep(
    model: str | PathLike[str],
    train: Any,
    evaluation: Any = None,
    *,
    scheme: str = "shaw",
    distances: Sequence[int] = (4, 8, 16, 32),
    **choices: Any,
) -> Comparison:
    """Quality, memory and speed of one scheme over the clip distance, beside the model without it.

    Args:
        model: as for :func:`compare`, as are ``train`` and ``evaluation``.
        train: what is learned from.
        evaluation: what is measured on.
        scheme: a setting of one scheme without its clip distance: ``"shaw"``, ``"drop/shaw,value=false"``.
        distances: its clip distances.
        **choices: of :func:`compare`, all but ``settings`` and ``memory``.

    Raises:
        ComparisonError: (a ``ValueError``) for a scheme without a clip distance, and what :func:`compare` refuses.
    """
    settings = [UNPATCHED, *(with_distance(scheme, distance) for distance in distances)]
    return compare(model, train, evaluation, settings=settings, memory=True, **choices)


def _carry_out(plan: Plan, folder: Folder, progress: bool) -> Comparison:
    """Do all runs that are not finished."""
    folder.check()
    folder.open()
    finished, steps = folder.results(), plan.budget.max_steps
    total = len(plan.jobs)
    with tqdm(total=total * steps, initial=len(finished) * steps, unit="step", disable=not progress) as bar:
        for number, job in enumerate(plan.jobs, start=1):
            if job in finished:
                continue
            source = plan.model
            if job.setting.converted:
                bar.set_description(f"converting for {job.setting.name}")
                source = str(converted_model(plan, job.setting, folder.model_of(job.setting)))
            bar.set_description(f"run {number} of {total}: {job}")
            if plan.memory:
                result = run_apart(plan, job, source)
                bar.update(steps)
            else:
                result = run_here(plan, job, source, [PlanProgress(bar)])
            folder.keep(job, result)
    return Comparison.of(plan.record(), list(folder.results().values()))
