"""What a recipe is, and how it is carried out: run by run, each kept as it ends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.parts import Part, part, read_parts, with_versions, write_parts
from hf_relpos.cli.errors import CommandError

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        name: its word on the command line, and the name of its file.
        jobs: what is run with each seed.
        budget: all numbers that results depend on, as JSON has them.
        packages: the data, and what else has a version that matters.
        prepare: from a folder for files to what the runs need: data, tokenizer, paths.
        run: from that, a job and a seed to rows of results.
        section: from finished runs to a section of ``docs/results.md``.
    """

    name: str
    jobs: Sequence[str]
    budget: dict[str, Any]
    packages: Sequence[str]
    prepare: Callable[[Path], Any]
    run: Callable[[Any, str, int], Rows]
    section: Callable[[list[Part]], str]


def carry_out(recipe: Recipe, seeds: Sequence[int], folder: Path) -> list[Part]:
    """Do all runs that are not in the folder yet, every job with the first seed, then with the next.

    Returns:
        The finished runs.

    Raises:
        CommandError: for a file of results that is damaged, or of another budget.
        FileNotFoundError: for data that is not installed, with the command that installs it.
    """
    finished = kept(recipe, folder)
    left = [(job, seed) for seed in seeds for job in recipe.jobs if {"job": job, "seed": seed} not in finished]
    if left:
        with tempfile.TemporaryDirectory(prefix=f"recipe_{recipe.name}_") as scratch:
            prepared = recipe.prepare(Path(scratch))
            for number, (job, seed) in enumerate(left, start=1):
                print(f"run {number} of {len(left)}: {job}, seed {seed}", flush=True)
                rows = recipe.run(prepared, job, seed)
                settings = {"threads": torch.get_num_threads(), "budget": recipe.budget}
                made = with_versions(part({"job": job, "seed": seed}, rows, **settings), *recipe.packages)
                write_parts(recipe.name, [made], folder)
    return read_parts(recipe.name, folder)


def kept(recipe: Recipe, folder: Path) -> list[dict[str, Any]]:
    """What is finished: jobs with their seeds.

    Raises:
        CommandError: for a file of results that is damaged, or of another budget.
    """
    path = folder / f"{recipe.name}.json"
    try:
        parts = read_parts(recipe.name, folder)
        other = [made for made in parts if made["budget"] != recipe.budget]
        done = [made["of"] for made in parts]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} is damaged: it holds no results of a recipe. Move it away.") from error
    if other:
        raise CommandError(
            f"{path} has results of another budget: {other[0]['budget']}, not {recipe.budget}. Give the name of a new "
            "folder."
        )
    return done
