"""The pictures of what was compared. Needs matplotlib, so nothing that must run without it imports this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hf_relpos.comparing.settings import UNPATCHED
from hf_relpos.comparing.table import COLUMNS

if TYPE_CHECKING:
    from hf_relpos.comparing.record import Comparison

# Okabe and Ito, https://jfly.uni-koeln.de/color/, without the yellow that white paper swallows. Lines differ in their
# dashes and markers as well: after seven settings a colour comes again with other ones.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES, MARKERS = ("-", "--", ":", "-."), "osD^vPX*"
ACCURACY, LOSS = "accuracy", "validation loss (nats)"
CURVES = {"eval_loss": LOSS, "accuracy": ACCURACY}
FINAL = {"accuracy": ACCURACY, "loss": LOSS}
BY_DISTANCE = {**FINAL, **{key: COLUMNS[key][0] for key in ("step_mib", "steps_per_second")}}


def draw(comparison: Comparison) -> dict[str, Figure]:
    """The pictures that there is something for, by their names."""
    figures = {"final": _final(comparison), "curves": _curves(comparison)}
    distances = _distances_of(comparison)
    if len(distances) > 1:
        figures["distances"] = _distances(comparison, distances)
    return figures


def _final(comparison: Comparison) -> Figure:
    names = comparison.names
    figure = Figure(figsize=(9.0, 1.3 + 0.36 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(FINAL), sharey=True, squeeze=False)[0]
    for axes, (key, label) in zip(panels, FINAL.items(), strict=True):
        for row, name in enumerate(names):
            values = [result.numbers()[key] for result in comparison.runs_of(name)]
            axes.plot(values, [row] * len(values), **{**_style(row), "linestyle": ""}, alpha=0.8)
            axes.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=_style(row)["color"], linewidth=2)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        _finish(axes)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylabel("setting")
    panels[0].invert_yaxis()
    return figure


def _curves(comparison: Comparison) -> Figure:
    figure = Figure(figsize=(9.0, 4.2 + 0.12 * len(comparison.names)), layout="constrained")
    panels = figure.subplots(1, len(CURVES))
    for axes, (key, label) in zip(panels, CURVES.items(), strict=True):
        for number, name in enumerate(comparison.names):
            runs = [result.run for result in comparison.runs_of(name)]
            values = np.array([getattr(run, key) for run in runs])
            style = _style(number)
            axes.plot(runs[0].steps, values.mean(axis=0), label=name, **style)
            axes.fill_between(runs[0].steps, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.12)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_ylabel(label)
        _finish(axes)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _distances(comparison: Comparison, distances: Mapping[str, int]) -> Figure:
    summary = comparison.summary()
    keys = [key for key in BY_DISTANCE if all(key in summary[name] for name in distances)]
    figure = Figure(figsize=(9.0, 3.0 * math.ceil(len(keys) / 2)), layout="constrained")
    panels = list(figure.subplots(math.ceil(len(keys) / 2), 2, squeeze=False).flat)
    for spare in panels[len(keys) :]:
        spare.remove()
    for axes, key in zip(panels, keys, strict=False):
        for name, distance in distances.items():
            values = [result.numbers()[key] for result in comparison.runs_of(name)]
            axes.plot([distance] * len(values), values, "o", color=COLOURS[2], alpha=0.6)
        means = [summary[name][key].mean for name in distances]
        axes.plot(list(distances.values()), means, color=COLOURS[2])
        if UNPATCHED in summary:
            axes.axhline(summary[UNPATCHED][key].mean, color=COLOURS[0], linestyle="--", label=UNPATCHED)
            axes.legend(frameon=False)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(distances.values()), list(map(str, distances.values())))
        axes.set_xlabel("clip distance (tokens)")
        axes.set_ylabel(BY_DISTANCE[key])
        _finish(axes)
    return figure


def _distances_of(comparison: Comparison) -> dict[str, int]:
    """The clip distance of each setting that has one, in their order; none where other things differ as well."""
    patched = [setting for setting in comparison.plan["settings"] if setting["relpos"] is not None]
    distances: dict[str, int] = {}
    rest = []
    for setting in patched:
        scheme, *others = setting["relpos"]["schemes"]
        if others or "max_distance" not in scheme:
            return {}
        distances[setting["name"]] = scheme["max_distance"]
        relpos = {**setting["relpos"], "schemes": {**scheme, "max_distance": None}}
        rest.append({**setting, "name": None, "relpos": relpos})
    if any(one != rest[0] for one in rest):
        return {}
    return dict(sorted(distances.items(), key=lambda one: one[1]))


def _style(number: int) -> dict[str, Any]:
    turn, colour = divmod(number, len(COLOURS))
    return {
        "color": COLOURS[colour],
        "linestyle": DASHES[(colour + turn) % len(DASHES)],
        "marker": MARKERS[(colour + turn) % len(MARKERS)],
        "markersize": 5,
    }


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
