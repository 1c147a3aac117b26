"""What `hf-relpos compare` came to on its two built-in tasks: the numbers it wrote, and the page that they make."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import table
from hf_relpos.comparing import Comparison
from hf_relpos.comparing.products import NUMBERS, PAGE
from hf_relpos.comparing.table import cells, in_a_sentence

FOLDER = Path(__file__).parent.parent.parent / "docs" / "compared"
CURVES = "curves.svg"
# Speeds are left out: these runs shared their processor with others.
SHOWN = ("setting", "accuracy", "macro-F1", "validation loss", "added parameters")


@dataclass(frozen=True)
class Compared:
    """One comparison.

    Attributes:
        folder: where in ``docs/compared/`` its files are: ``results.json``, ``index.html``, ``curves.svg``.
        heading: of its section.
        command: that repeats it.
        reading: what it shows, and what not.
    """

    folder: str
    heading: str
    command: str
    reading: str

    def load(self) -> Comparison:
        """The comparison as it was kept."""
        return Comparison.from_dict(json.loads((FOLDER / self.folder / NUMBERS).read_text(encoding="utf-8")))

    def draw(self) -> None:
        """Make its page and its picture of what was kept. Needs matplotlib."""
        with tempfile.TemporaryDirectory() as scratch:
            self.load().save(scratch)
            for name in (PAGE, CURVES):
                shutil.copyfile(Path(scratch, name), FOLDER / self.folder / name)

    def section(self) -> str:
        """Its part of the page."""
        comparison = self.load()
        head, *rows = cells(comparison)
        columns = [head.index(name) for name in SHOWN]
        what, budget = in_a_sentence(comparison).split("\n")
        made_with = {**comparison.hardware, **comparison.plan["versions"]}
        with_what = ", ".join(f"{name} {value}" for name, value in made_with.items()).replace("_", " ")
        return "\n\n".join(
            [
                f"## {self.heading}",
                f"`{self.command}`. {what} {budget}",
                table([[row[column] for column in columns] for row in (head, *rows)]),
                f"![Loss and accuracy while training](compared/{self.folder}/{CURVES})",
                self.reading,
                f"[The page of it](compared/{self.folder}/{PAGE}). Made with {with_what}.",
            ]
        )


APART = """Here settings are told apart. With the pretrained positions taken away and tables that start at zero
(*drop*), 100 steps do not bring the model beyond guessing, with any seed. ALiBi, which looks more at what is near from
the first step on, comes to the same with every seed. The others break through late or hardly at all, and it is the seed
that decides which: hence their spread. At the end Shaw and the gate are ahead of the unpatched model with two seeds of
three, and level with it in the other, but by less than the seeds differ; among Shaw, T5's bias and the gate three seeds
show no order."""

SHORT = """Short news can be told apart by their words alone: all settings end within four of the 256 texts of the
unpatched model, and mostly within two, which is about what the seeds differ by. Even without the pretrained
positions (*drop*) as many texts are right at the end, though the model is less sure of them. ALiBi, which changes
the model from the first step on, begins behind and stays so by a few texts; a converted model (the row *converted*:
`converted/clipped:128+shaw:16`) is as good a start as the original. What Shaw's vectors, T5's bias and the gate have
learned in 100 steps changes hardly an answer: their rows are nearly equal. So published work has it, and so
`hf-relpos recommend` says: for short texts absolute positions are enough."""

COMPARED = (
    Compared(
        "bbc",
        "A task that hardly needs positions: what is a news text about?",
        "hf-relpos compare --settings unpatched shaw:8 shaw:16 t5 alibi gate drop "
        "converted/clipped:128+shaw:16 --output-dir DIR",
        SHORT,
    ),
    Compared(
        "distance",
        "A task that needs positions: how far apart do two marked words stand?",
        "hf-relpos compare --task distance --max-length 64 --settings unpatched shaw:16 t5 alibi gate drop "
        "--output-dir DIR",
        APART,
    ),
)
