"""What `hf-relpos compare` came to on its two built-in tasks: the files it wrote are kept as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import table
from hf_relpos.comparing import Comparison
from hf_relpos.comparing.table import cells, in_a_sentence

FOLDER = Path(__file__).parent.parent.parent / "docs" / "compared"
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

    def load(self, folder: Path = FOLDER) -> Comparison:
        """The comparison as it was kept."""
        return Comparison.from_dict(json.loads((folder / self.folder / "results.json").read_text(encoding="utf-8")))

    def section(self, folder: Path = FOLDER) -> str:
        """Its part of the page."""
        comparison = self.load(folder)
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
                f"![Loss and accuracy while training](compared/{self.folder}/curves.svg)",
                self.reading,
                f"[The page that the command made](compared/{self.folder}/index.html). Made with {with_what}.",
            ]
        )


APART = """Here settings are told apart. With the pretrained positions taken away and tables that start at zero
(*drop*), 100 steps do not bring the model beyond guessing, with any seed. ALiBi, which looks more at what is near from
the first step on, comes to the same with every seed. The others break through late or hardly at all, and it is the seed
that decides which: hence their spread. At the end Shaw and the gate are ahead of the unpatched model with two seeds of
three, and level with it in the other, but by less than the seeds differ; among Shaw, T5's bias and the gate three seeds
show no order."""

COMPARED = (
    Compared(
        "distance",
        "A task that needs positions: how far apart do two marked words stand?",
        "hf-relpos compare --task distance --max-length 64 --settings unpatched shaw:16 t5 alibi gate drop "
        "--output-dir DIR",
        APART,
    ),
)
