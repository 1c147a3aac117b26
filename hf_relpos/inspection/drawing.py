"""The pictures of what was found in a model. Needs matplotlib, so nothing that must run without it imports this.

Colours are told apart by those who do not see red and green apart: a scale from dark to light (cividis) for what has a
size, one from blue over white to red for what has a middle, and lines that differ in their dashes as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hf_relpos.inspection.attention import AS_IT_IS, WITHOUT_NATIVE, WITHOUT_RELATIVE, AttentionUse
from hf_relpos.inspection.parameters import TABLES, UNREACHED, Learned, Table

if TYPE_CHECKING:
    from hf_relpos.inspection.record import Inspection

OFFSET = "offset: key position - query position (tokens)"
SIZES, MIDDLE = "cividis", "RdBu_r"
UNKNOWN = "#d5d9dc"
# Blue, orange and green of Okabe and Ito, https://jfly.uni-koeln.de/color/.
WAYS: dict[str, dict[str, Any]] = {
    AS_IT_IS: {"color": "#0072b2", "linewidth": 2.5},
    WITHOUT_RELATIVE: {"color": "#d55e00", "linewidth": 1.5, "linestyle": "--"},
    WITHOUT_NATIVE: {"color": "#009e73", "linewidth": 1.5, "linestyle": ":"},
}
COLUMNS = 3  # panels beside each other
MOST_WRITTEN = 16 * 24  # cells of a heat map in which their numbers are written


def draw(inspection: Inspection) -> dict[str, Figure]:
    """The pictures that there is something for, by their names."""
    learned, attention = inspection.learned, inspection.attention
    figures = {}
    if learned.tables:
        figures["tables"] = _tables(learned)
    if "bias" in learned.tables:
        figures["bias"] = _bias(learned)
    for kind, table in learned.tables.items():
        if table.similarity is not None:
            figures[f"similarity_{kind}"] = _similarity(kind, table)
    if learned.gates is not None or learned.native:
        figures["gates"] = _gates(learned)
    if attention is not None:
        figures["attention"] = _attention(attention)
        figures["scores"] = _scores(attention)
        figures["use"] = _use(attention)
    return figures


# Pictures


def _tables(learned: Learned) -> Figure:
    panels = [(table, title) for kind, title in TABLES.items() if (table := learned.tables.get(kind)) is not None]
    heights = [height_of(len(table.layers)) for table, _ in panels]
    figure = Figure(figsize=(9.0, sum(heights) + 0.8), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (table, title), axes in zip(panels, all_axes, strict=True):
        draw_table(figure, axes, table=table, title=title)
    explain_grey(figure, learned)
    return figure


def _bias(learned: Learned) -> Figure:
    table = learned.tables["bias"]
    gates = dict(zip(learned.gate_layers, learned.gates if learned.gates is not None else (), strict=False))
    acting = [
        values * gates[name][:, None] if name in gates else values
        for name, values in zip(table.layers, table.values, strict=True)
    ]
    reach = table.values.shape[-1] // 2
    below = f"{OFFSET}; at ±{reach}: and all beyond"
    return _by_head(
        table.layers, np.arange(-reach, reach + 1), acting, below, "bias times its gate (added to the score)"
    )


def _scores(attention: AttentionUse) -> Figure:
    offsets = np.arange(-attention.farthest, attention.farthest + 1)
    beside = "added to the score, mean over the texts"
    return _by_head(attention.layers, offsets, list(attention.added), OFFSET, beside)


def _by_head(
    layers: Sequence[str], offsets: np.ndarray, values: Sequence[np.ndarray], below: str, beside: str
) -> Figure:
    """A panel of lines over offsets for each layer, a line for each head."""
    figure, panels = _grid(layers, 3.2, 2.5, sharey=True)
    heads = max(map(len, values))
    colours = colormaps[SIZES](np.linspace(0, 1, heads))
    for axes, name, rows in zip(panels, layers, values, strict=True):
        for head, row in enumerate(rows):
            axes.plot(offsets, row, color=colours[head], linewidth=1.2)
        _finish_lines(axes, f"layer {name}")
    figure.supxlabel(below, fontsize="medium")
    figure.supylabel(beside, fontsize="medium")
    scale = ScalarMappable(Normalize(0, max(heads - 1, 1)), SIZES)
    figure.colorbar(scale, ax=panels, label="head", ticks=MaxNLocator(nbins=8, integer=True), aspect=40)
    return figure


def _similarity(kind: str, table: Table) -> Figure:
    similarity: Any = table.similarity
    figure, panels = _grid(table.layers, 3.2, 2.9)
    reach = table.values.shape[-1] // 2
    for axes, name, cosines in zip(panels, table.layers, similarity, strict=True):
        image = axes.imshow(
            np.ma.masked_invalid(cosines),
            cmap=colormaps[MIDDLE].with_extremes(bad=UNKNOWN),
            norm=Normalize(-1, 1),
            origin="lower",
            extent=(-reach - 0.5, reach + 0.5, -reach - 0.5, reach + 0.5),
        )
        axes.set_title(f"layer {name}", loc="left", fontsize="medium")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    figure.supxlabel("offset (tokens). Grey: a vector of no length", fontsize="medium")
    figure.supylabel("offset (tokens)", fontsize="medium")
    figure.colorbar(image, ax=panels, label=f"cosine of two {TABLES[kind].partition(':')[0]}", aspect=40)
    return figure


def _gates(learned: Learned) -> Figure:
    panels: list[tuple[float, Callable[[Figure, Any], None]]] = []
    if learned.gates is not None:
        panels.append((height_of(len(learned.gate_layers)), partial(draw_gates, learned=learned)))
    if learned.native:
        panels.append((height_of(len(learned.native)), partial(draw_native, native=learned.native)))
    heights = [height for height, _ in panels]
    figure = Figure(figsize=(9.0, sum(heights) + 0.5), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (_, panel), axes in zip(panels, all_axes, strict=True):
        panel(figure, axes)
    return figure


def _attention(attention: AttentionUse) -> Figure:
    figure, panels = _grid(attention.layers, 3.2, 2.5, sharey=True)
    offsets = np.arange(-attention.farthest, attention.farthest + 1)
    highest = max(100 * np.nanmean(mass, axis=1).max() for mass in attention.mass.values())
    for number, (axes, name) in enumerate(zip(panels, attention.layers, strict=True)):
        for way, mass in attention.mass.items():
            axes.plot(offsets, 100 * np.nanmean(mass[number], axis=0), label=way, **WAYS[way])
        _finish_lines(axes, f"layer {name}")
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(0, 1.2 * highest)
        axes.yaxis.set_major_formatter("{x:g}")
    figure.supxlabel(OFFSET, fontsize="medium")
    figure.supylabel("attention to this offset, mean of heads (%)", fontsize="medium")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def _use(attention: AttentionUse) -> Figure:
    panels: list[tuple[str, np.ndarray, str]] = [
        (f"attention that goes elsewhere {way}", moved, SIZES) for way, moved in attention.moved.items()
    ]
    if attention.relative_share is not None:
        title = "of what positions move, the share of the relative terms (0: all pretrained, 1: all relative)"
        panels.append((title, attention.relative_share, MIDDLE))
    height = height_of(len(attention.layers))
    figure = Figure(figsize=(9.0, height * len(panels) + 0.3), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, values, colours) in zip(all_axes, panels, strict=True):
        draw_heads(figure, axes, attention.layers, values, colours, Normalize(0, 1), "share (0 to 1)", 2)
        axes.set_title(title, loc="left", fontsize="medium")
    return figure


# Panels, of which other pictures are made as well


def height_of(rows: int) -> float:
    """Inches for a panel with so many rows: a title and an axis, and a row for each."""
    return 0.95 + 0.24 * rows


def draw_table(figure: Figure, axes: Any, *, table: Table, title: str) -> None:
    """A heat map of how much stands in a table, a row for each layer, a column for each offset."""
    furthest = (table.strength.shape[1] - 1) // 2
    image = axes.imshow(
        np.ma.masked_where(table.unreached, table.strength),
        aspect="auto",
        cmap=colormaps[SIZES].with_extremes(bad=UNKNOWN),
        norm=Normalize(0, table.strength.max() or 1),
        extent=(-furthest - 0.5, furthest + 0.5, len(table.layers) - 0.5, -0.5),
    )
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlabel(f"{OFFSET}; at ±{furthest}: and all beyond")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.set_yticks(range(len(table.layers)), table.layers)
    figure.colorbar(image, ax=axes, pad=0.01, label="size" if "size" in title else "length")


def explain_grey(figure: Figure, learned: Learned) -> None:
    """Say below a picture of tables what grey means, if there is any."""
    if any(table.unreached.any() for table in learned.tables.values()):
        figure.supxlabel(fill(f"Grey: {UNREACHED}", width=120), fontsize="small", x=0.02, ha="left")


def draw_gates(figure: Figure, axes: Any, *, learned: Learned) -> None:
    """A heat map of the gates, a row for each layer, a column for each head: white where one is as it started."""
    gates: Any = learned.gates
    reach = max(float(np.nanmax(np.abs(gates - 1))), 0.01)
    scale = Normalize(1 - reach, 1 + reach)
    draw_heads(figure, axes, learned.gate_layers, gates, MIDDLE, scale, "gate", 2 if reach > 0.05 else 3)
    axes.set_title("gate on the relative terms (1 at the start)", loc="left", fontsize="medium")


def draw_heads(
    figure: Figure,
    axes: Any,
    layers: Sequence[str],
    values: np.ndarray,
    colours: str,
    scale: Normalize,
    label: str,
    decimals: int,
) -> None:
    """A heat map of one number for each layer and head, which is written in its cell where there is room."""
    colour = colormaps[colours].with_extremes(bad=UNKNOWN)
    image = axes.imshow(np.ma.masked_invalid(values), aspect="auto", cmap=colour, norm=scale)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_xticks(range(values.shape[1]), range(values.shape[1]))
    axes.set_yticks(range(len(layers)), layers)
    if values.size <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                red, green, blue, _ = colour(scale(value))
                light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
                text = f"{value:.{decimals}f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if light else "white")
    figure.colorbar(image, ax=axes, pad=0.01, label=label)


def draw_native(figure: Figure, axes: Any, *, native: dict[str, float]) -> None:
    """Bars of the gates on the pretrained positions."""
    names = [name.split(".")[-1].replace("_", " ") for name in native]
    values = list(native.values())
    bars = axes.barh(range(len(values)), values, height=0.5, color="#5b6770")
    axes.bar_label(bars, [f"{value:.3f}" for value in values], padding=4)
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_title("gate on the pretrained positions (1 at the start)", loc="left", fontsize="medium")
    axes.set_xlabel("gate")
    axes.set_yticks(range(len(values)), names)
    axes.set_xlim(min(0.0, *values), max(1.15, 1.15 * max(values)))
    axes.spines[["top", "right"]].set_visible(False)


def _grid(names: Sequence[str], width: float, height: float, **shared: Any) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each name."""
    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(width * columns + 0.8, height * rows + 0.6), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for spare in panels[len(names) :]:
        spare.remove()
    return figure, panels[: len(names)]


def _finish_lines(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium")
    axes.axvline(0, color="black", linewidth=0.6, alpha=0.5)
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
