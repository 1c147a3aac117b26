"""Write `docs/results.md` from the kept results: ``python -m examples.recipes.report``. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.parts import read_parts
from examples.recipes import classification, language_model, tagging, translation
from examples.recipes.comparisons import COMPARED
from examples.recipes.recipe import Recipe

RESULTS = Path(__file__).parent / "results"
TARGET = Path(__file__).parent.parent.parent / "docs" / "results.md"
RECIPES = {each.RECIPE.name: each.RECIPE for each in (language_model, translation, classification, tagging)}

HEAD = """# Results

What relative positions came to on small tasks that anyone can repeat, without a network once the packages are installed
([how](../examples/README.md#recipes)). Made by `python -m examples.recipes.report` from the files in
`examples/recipes/results/`; every number comes from a command named here. ± is the standard deviation over the seeds:
where two rows differ by less, these seeds do not tell them apart. The models learn for a minute or two: what a table
shows holds at this scale. How to try it on your own task: [`hf-relpos compare`](commands.md#compare).
"""


def page(recipes: Iterable[Recipe] = RECIPES.values(), folder: Path = RESULTS) -> str:
    """The whole page; a section for each recipe that has results."""
    sections = [recipe.section(parts) for recipe in recipes if (parts := read_parts(recipe.name, folder))]
    compared = [one.section() for one in COMPARED]
    return "\n".join([HEAD, *(text + "\n" for text in (*sections, *compared))])


def main() -> None:
    """Write the page, and those of the comparisons."""
    for one in COMPARED:
        one.draw()
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
