"""The two pictures of the demo: how both models learned, and what the patched one learned about positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from transformers import PreTrainedModel

from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.training import Run
from hf_relpos.families.tables import NativeGate
from hf_relpos.gates import HeadGate, TokenGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.terms import RelativeTerms

TABLES = {
    "query": "relative keys: mean length of the vector",
    "key": "relative queries: mean length of the vector",
    "value": "relative values: mean length of the vector",
    "bias": "bias: mean size over the heads",
}
# So far tables are drawn where none has an end.
DRAWN = 64

# The first curve is broad and pale, so that it is seen even where the second one lies on it.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#9aa7b1", "linewidth": 5, "marker": "o", "markersize": 10},
    {"color": "#c1432e", "linewidth": 1.5, "marker": "s", "markersize": 4},
)


@dataclass(frozen=True)
class Learned:
    """What the parameters of a patch hold, as pictures need it.

    Attributes:
        layers: Names of the layers, in order.
        tables: For each kind of table, its strength per layer and offset, `[layers, 2k + 1]`.
        gate_layers: Names of the layers with a gate.
        gates: The gate of each of these layers and each head, `[gate layers, heads]`; None without gates.
        native: The gate on the pretrained positions, by the name of the part it sits in.
    """

    layers: list[str]
    tables: dict[str, np.ndarray]
    gate_layers: list[str]
    gates: np.ndarray | None
    native: dict[str, float]


def plot_validation_loss(runs: Mapping[str, Run], path: Path) -> None:
    """Draw the loss on the evaluation texts over the training steps, one curve per model."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, run), style in zip(runs.items(), STYLES, strict=False):
        axes.plot(run.steps, run.eval_loss, label=f"{name} (final {run.eval_loss[-1]:.3f})", **style)
    axes.set_title("Validation loss, same data in the same order")
    axes.set_xlabel("training step")
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_ylim(bottom=0)
    axes.set_xticks(next(iter(runs.values())).steps)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def plot_learned(model: PreTrainedModel, path: Path) -> None:
    """Draw what a patch has learned: its tables per layer and offset, its gates per layer and head.

    Raises:
        CommandError: If the model is not patched.
    """
    learned = collect_learned(model)
    panels: list[tuple[int, Callable[[Figure, Any], None]]] = [
        (len(learned.layers), partial(_draw_table, layers=learned.layers, table=learned.tables[kind], title=title))
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
    figure = Figure(figsize=(9.0, sum(heights) + 0.6), layout="constrained")
    figure.suptitle("What the patch has learned")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (_, draw), axes in zip(panels, all_axes, strict=True):
        draw(figure, axes)
    figure.savefig(path, dpi=150)


def collect_learned(model: PreTrainedModel) -> Learned:
    """Read the tables and gates out of a patched model.

    Raises:
        CommandError: If the model is not patched.
    """
    strengths: dict[str, dict[str, np.ndarray]] = {}
    gates: dict[str, np.ndarray] = {}
    native: dict[str, float] = {}
    with torch.no_grad():
        schemes: dict[str, RelativeTerms] = {}
        for name, module in model.named_modules():
            layer = _layer_of(name)
            if isinstance(module, RelPosLayer) and module.schemes:
                schemes[layer] = _tables(module)
            elif isinstance(module, HeadGate):
                gates[layer] = _array(module.weight)
            elif isinstance(module, TokenGate):
                gates[layer] = _array(2 * torch.sigmoid(module.bias))
        for layer, terms in schemes.items():
            for kind in TABLES:
                table = getattr(terms, kind)
                if table is not None:
                    strength = table.abs() if table.ndim == 2 else table.norm(dim=-1)
                    strengths.setdefault(kind, {})[layer] = _array(strength.mean(dim=0))
        for name, module in model.named_modules():
            if isinstance(module, NativeGate):
                native[name.removesuffix(".relpos_gate")] = float(module.weight)
    if not schemes:
        raise CommandError(f"{type(model).__name__} is not patched. Patch it with hf_relpos.patch_model first.")
    return Learned(
        layers=list(schemes),
        tables={kind: np.stack(list(rows.values())) for kind, rows in strengths.items()},
        gate_layers=list(gates),
        gates=np.stack(list(gates.values())) if gates else None,
        native=native,
    )


def _tables(layer: RelPosLayer) -> RelativeTerms:
    """The tables of a layer's schemes together; of one without a horizon, as much as of the others."""
    schemes: Any = layer.schemes
    horizons = [scheme.horizon for scheme in layer.config.scheme_configs if scheme.horizon is not None]
    reach = max(horizons, default=DRAWN)
    return reduce(add, [scheme.tables(reach, torch.empty(0)) for scheme in schemes])


def _layer_of(name: str) -> str:
    """The layer that a module's name puts it in: `decoder 3`, `3`, or `shared`."""
    number = re.search(r"\.(\d+)\.", name.split(".relpos")[0] + ".")
    stack = "decoder " if re.search(r"(^|\.)decoder\.", name) else ""
    return f"{stack}{number.group(1)}" if number else f"{stack}shared"


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def _draw_table(figure: Figure, axes: Any, *, layers: list[str], table: np.ndarray, title: str) -> None:
    furthest = (table.shape[1] - 1) // 2
    image = axes.imshow(
        table,
        aspect="auto",
        cmap="viridis",
        vmin=0,
        extent=(-furthest - 0.5, furthest + 0.5, len(layers) - 0.5, -0.5),
    )
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlabel(f"offset: key position - query position (at ±{furthest}: and all beyond)")
    axes.set_ylabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.set_yticks(range(len(layers)), layers)
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
