"""The picture of who reads long texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hf_relpos.cli.long.readers import CONVERTED, ORIGINAL, WINDOWS
from hf_relpos.cli.long.tasks import Row

# The ways that need no training are pale: what matters is the original, its windows, and the copy.
STYLES: dict[str, dict[str, Any]] = {
    ORIGINAL: {"color": "#4d5a66", "marker": "o"},
    WINDOWS: {"color": "#2b7bba", "marker": "^"},
    CONVERTED: {"color": "#c1432e", "marker": "s"},
}
MARKERS = ("v", "D", "P")


def plot_reading(found: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw what each reader found and named.

    Args:
        found: the rows of the tasks ``find``, ``passkey`` and ``label``.
        path: of the picture.
    """
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    bars, passkeys, labels = figure.subplots(1, 3)
    rows = found["find"]
    names = [row["reader"] for row in rows]
    others = iter(MARKERS)
    styles = {name: STYLES.get(name) or {"color": "#b8c2cb", "marker": next(others)} for name in names}
    bars.barh(names, [row["recall_1"] for row in rows], color=[styles[name]["color"] for name in names])
    bars.invert_yaxis()
    bars.set_xlim(0, 1)
    bars.set_xlabel("share found (recall at 1)")
    bars.set_title("Article from a late sentence", fontsize="medium")
    for axes, task, title, what in (
        (passkeys, "passkey", "Pass key", "share found (recall at 1)"),
        (labels, "label", "Label of the nearest article", "share right (accuracy)"),
    ):
        lengths = [int(name) for name in found[task][0] if name != "reader"]
        for row in found[task]:
            values = [row[str(length)] for length in lengths]
            axes.plot(lengths, values, label=row["reader"], **styles[row["reader"]])
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, map(str, lengths))
        axes.minorticks_off()
        axes.set_xlabel("tokens of a text")
        axes.set_ylabel(what)
        axes.set_ylim(-0.03, 1.03)
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.25)
    handles, shown = passkeys.get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
