"""The command `python -m examples.recipes`: one recipe, its runs one after the other, and what they came to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parts import read_parts
from examples.recipes.recipe import carry_out
from examples.recipes.report import RECIPES
from hf_relpos.cli.demo_options import seed
from hf_relpos.cli.errors import CommandError, exit_status
from hf_relpos.cli.output import check_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and carry out a recipe; the exit status."""
    parser = argparse.ArgumentParser(
        prog="recipes",
        description="Carry out a recipe, and show what it came to. Each run is kept as it ends: given again, the "
        "command goes on where it was.",
    )
    parser.add_argument("recipe", choices=RECIPES, help="what to do")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="where results are kept")
    parser.add_argument("--seeds", type=seed, nargs="+", default=[0, 1, 2], metavar="N", help="of the runs (0 1 2)")
    args = parser.parse_args(arguments)
    return exit_status(parser.prog, lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    recipe, folder = RECIPES[args.recipe], args.output_dir
    check_folder("--output-dir", folder)
    try:
        parts = carry_out(recipe, args.seeds, folder)
    except FileNotFoundError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        finished = len(read_parts(recipe.name, folder))
        raise KeyboardInterrupt(
            f"Finished runs are kept in {folder} ({finished}): the same command goes on from there."
        ) from None
    print(recipe.section(parts))


if __name__ == "__main__":
    sys.exit(main())
