"""The two pictures of the demo: how both models learned, and what the patched one learned about positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hf_relpos.comparing.training import Run
from hf_relpos.inspection.drawing import draw_gates, draw_native, draw_table, explain_grey, height_of
from hf_relpos.inspection.parameters import TABLES, Learned

# The first curve is broad and pale, so that it is seen even where the second one lies on it.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#9aa7b1", "linewidth": 5, "marker": "o", "markersize": 10},
    {"color": "#c1432e", "linewidth": 1.5, "marker": "s", "markersize": 4},
)


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
        (len(learned.tables[kind].layers), partial(draw_table, table=learned.tables[kind], title=title))
        for kind, title in TABLES.items()
        if kind in learned.tables
    ]
    if learned.gates is not None:
        panels.append((len(learned.gate_layers), partial(draw_gates, learned=learned)))
    if learned.native:
        panels.append((len(learned.native), partial(draw_native, native=learned.native)))
    if not panels:
        panels = [(1, _draw_nothing)]
    heights = [height_of(rows) for rows, _ in panels]
    figure = Figure(figsize=(9.0, sum(heights) + 1.1), layout="constrained")
    figure.suptitle("What the patch has learned")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (_, draw), axes in zip(panels, all_axes, strict=True):
        draw(figure, axes)
    explain_grey(figure, learned)
    figure.savefig(path, dpi=150)


def _draw_nothing(figure: Figure, axes: Any) -> None:
    axes.set_title("no table and no gate: these schemes have none", loc="left", fontsize="medium")
    axes.set_axis_off()
