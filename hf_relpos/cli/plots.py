"""The two pictures of the demo: how both models learned, and what the patched one learned about positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hf_relpos.cli.learned import TABLES, UNREACHED, Learned, Table
from hf_relpos.cli.training import Run

# The first curve is broad and pale, so that it is seen even where the second one lies on it.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#9aa7b1", "linewidth": 5, "marker": "o", "markersize": 10},
    {"color": "#c1432e", "linewidth": 1.5, "marker": "s", "markersize": 4},
)
UNREACHED_COLOUR = "#d5d9dc"


def plot_validation_loss(runs: Mapping[str, Run], path: Path) -> None:
    """Draw the loss on the evaluation texts over the training steps, one curve per model."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, run), style in zip(runs.items(), STYLES, strict=False):
        axes.plot(run.steps, run.eval_loss, label=f"{name} (final {run.eval_loss[-1]:.3f})", **style)
    axes.set_title("Validation loss, same data in the same order")
    axes.set_xlabel("training step")
    axes.set_ylabel("cross-entropy (nats)")
    highest = max((loss for run in runs.values() for loss in run.eval_loss if math.isfinite(loss)), default=0.0) or 1.0
    axes.set_ylim(-0.05 * highest, 1.08 * highest)  # no curve lies on an edge, where half of it would be cut off
    axes.set_xticks(next(iter(runs.values())).steps)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def plot_learned(learned: Learned, path: Path) -> None:
    """Draw what a patch has learned: its tables per layer and offset, its gates per layer and head."""
    panels: list[tuple[int, Callable[[Figure, Any], None]]] = [
        (len(learned.tables[kind].layers), partial(_draw_table, table=learned.tables[kind], title=title))
        for kind, title in TABLES.items()
        if kind in learned.tables
    ]
    if learned.gates is not None:
        draw_gates = partial(_draw_gates, layers=learned.gate_layers, gates=learned.gates)
        panels.append((len(learned.gate_layers), draw_gates))
    if learned.native:
        panels.append((len(learned.native), partial(_draw_native, native=learned.native)))
    if not panels:
        panels = [(1, _draw_nothing)]
    heights = [0.95 + 0.24 * rows for rows, _ in panels]  # inches: a title and an axis, and a row for each layer
    figure = Figure(figsize=(9.0, sum(heights) + 1.1), layout="constrained")
    figure.suptitle("What the patch has learned")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (_, draw), axes in zip(panels, all_axes, strict=True):
        draw(figure, axes)
    if any(table.unreached.any() for table in learned.tables.values()):
        figure.supxlabel(fill(f"Grey: {UNREACHED}", width=120), fontsize="small", x=0.02, ha="left")
    figure.savefig(path, dpi=150)


def _draw_table(figure: Figure, axes: Any, *, table: Table, title: str) -> None:
    furthest = (table.strength.shape[1] - 1) // 2
    image = axes.imshow(
        np.ma.masked_where(table.unreached, table.strength),
        aspect="auto",
        cmap=colormaps["viridis"].with_extremes(bad=UNREACHED_COLOUR),
        norm=Normalize(0, table.strength.max() or 1),
        extent=(-furthest - 0.5, furthest + 0.5, len(table.layers) - 0.5, -0.5),
    )
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlabel(f"offset: key position - query position (at ±{furthest}: and all beyond)")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.set_yticks(range(len(table.layers)), table.layers)
    figure.colorbar(image, ax=axes, pad=0.01)


def _draw_gates(figure: Figure, axes: Any, *, layers: list[str], gates: np.ndarray) -> None:
    # Blue below 1, red above, white where a gate is as it was at the start.
    reach = max(float(np.abs(gates - 1).max()), 0.01)
    image = axes.imshow(gates, aspect="auto", cmap="RdBu_r", norm=Normalize(1 - reach, 1 + reach))
    axes.set_title("gate on the relative terms (1 at the start)", loc="left", fontsize="medium")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_xticks(range(gates.shape[1]), range(gates.shape[1]))
    axes.set_yticks(range(len(layers)), layers)
    decimals = 2 if reach > 0.05 else 3
    if gates.size <= 16 * 24:
        for (row, column), gate in np.ndenumerate(gates):
            pale = abs(gate - 1) < 0.6 * reach
            axes.text(
                column,
                row,
                f"{gate:.{decimals}f}",
                ha="center",
                va="center",
                fontsize=7,
                color="black" if pale else "white",
            )
    figure.colorbar(image, ax=axes, pad=0.01)


def _draw_nothing(figure: Figure, axes: Any) -> None:
    axes.set_title("no table and no gate: these schemes have none", loc="left", fontsize="medium")
    axes.set_axis_off()


def _draw_native(figure: Figure, axes: Any, *, native: Mapping[str, float]) -> None:
    names = [name.split(".")[-1].replace("_", " ") for name in native]
    values = list(native.values())
    bars = axes.barh(range(len(values)), values, height=0.5, color="#5b6770")
    axes.bar_label(bars, [f"{value:.3f}" for value in values], padding=4)
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_title("gate on the pretrained positions (1 at the start)", loc="left", fontsize="medium")
    axes.set_yticks(range(len(values)), names)
    axes.set_xlim(min(0.0, *values), max(1.15, 1.15 * max(values)))
    axes.spines[["top", "right"]].set_visible(False)
