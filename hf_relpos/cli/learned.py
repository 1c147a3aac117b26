"""What a patch has learned about positions, read out of a patched model's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_relpos.cli.errors import CommandError
from hf_relpos.families.tables import NativeGate
from hf_relpos.gates import HeadGate, TokenGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.schemes.base import LearnedTables
from hf_relpos.terms import RelativeTerms

# Each kind of table, and what is shown of it.
TABLES = {
    "query": "relative keys: mean length of the vector",
    "key": "relative queries: mean length of the vector",
    "value": "relative values: mean length of the vector",
    "bias": "bias: mean size over the heads",
}
# So far tables are read where none has an end.
FARTHEST = 64

# Why a part of a table can be where it started, however long the model was trained.
UNREACHED = (
    "still at zero, since nothing that was trained on depends on it. The texts have no tokens so far apart; or it is "
    "the last layer of a classifier that reads the output of the first token alone, and no token stands before it."
)


@dataclass(frozen=True)
class Table:
    """One kind of table, in all layers that have it.

    Attributes:
        layers: Names of the layers, in order.
        strength: How much stands in it per layer and offset, `[layers, 2k + 1]`.
        unreached: Where training has moved nothing, of the same shape.
    """

    layers: list[str]
    strength: np.ndarray
    unreached: np.ndarray


@dataclass(frozen=True)
class Learned:
    """What the parameters of a patch hold, as pictures and reports need it.

    Attributes:
        tables: The tables, by their kind.
        gate_layers: Names of the layers with a gate.
        gates: The gate of each of these layers and each head, `[gate layers, heads]`; None without gates.
        native: The gate on the pretrained positions, by the name of the part it sits in.
    """

    tables: dict[str, Table]
    gate_layers: list[str]
    gates: np.ndarray | None
    native: dict[str, float]


@torch.no_grad()
def collect_learned(model: PreTrainedModel) -> Learned:
    """Read the tables and gates out of a patched model.

    Raises:
        CommandError: If the model is not patched.
    """
    layers = {
        _layer_of(name): module
        for name, module in model.named_modules()
        if isinstance(module, RelPosLayer) and module.schemes
    }
    if not layers:
        raise CommandError(f"{type(model).__name__} is not patched. Patch it with hf_relpos.patch_model first.")
    tables: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {}
    for name, layer in layers.items():
        terms = _tables(layer)
        # Only where a table is all parameters, and they start at zero, does a zero say that nothing has moved it.
        starts_at_zero = all(isinstance(s, LearnedTables) and s.starts_exact for s in layer.config.scheme_configs)
        for kind in TABLES:
            table = getattr(terms, kind)
            if table is not None:
                size = table.abs() if table.ndim == 2 else table.norm(dim=-1)
                strength = _array(size.mean(dim=0))
                tables.setdefault(kind, []).append((name, strength, (strength == 0) & starts_at_zero))
    gates = dict(_gates(model))
    return Learned(
        tables={
            kind: Table(list(names), np.stack(strengths), np.stack(unreached))
            for kind, (names, strengths, unreached) in (
                (kind, zip(*rows, strict=True)) for kind, rows in tables.items()
            )
        },
        gate_layers=list(gates),
        gates=np.stack(list(gates.values())) if gates else None,
        native={
            name.removesuffix(".relpos_gate"): float(module.weight)
            for name, module in model.named_modules()
            if isinstance(module, NativeGate)
        },
    )


def unreached_in_words(learned: Learned) -> list[str]:
    """A line for each part of a table that training has not reached: kind, layer, offsets."""
    return [
        f"{TABLES[kind].partition(':')[0]}, layer {layer}: offsets {first} to {last}"
        for kind, table in learned.tables.items()
        for layer, row in zip(table.layers, table.unreached, strict=True)
        for first, last in _runs(row)
    ]


def _runs(row: np.ndarray) -> Iterator[tuple[int, int]]:
    """The first and the last offset of each stretch of true entries."""
    places = np.flatnonzero(row)
    for stretch in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        if len(stretch):
            yield int(stretch[0]) - len(row) // 2, int(stretch[-1]) - len(row) // 2


def _gates(model: PreTrainedModel) -> Iterator[tuple[str, np.ndarray]]:
    for name, module in model.named_modules():
        if isinstance(module, HeadGate):
            yield _layer_of(name), _array(module.weight)
        elif isinstance(module, TokenGate):  # what it is for a query of zeros
            yield _layer_of(name), _array(2 * torch.sigmoid(module.bias))


def _tables(layer: RelPosLayer) -> RelativeTerms:
    """The tables of a layer's schemes together; of one without a horizon, as much as of the others."""
    schemes: Any = layer.schemes
    horizons = [scheme.horizon for scheme in layer.config.scheme_configs if scheme.horizon is not None]
    reach = max(horizons, default=FARTHEST)
    return reduce(add, [scheme.tables(reach, torch.empty(0)) for scheme in schemes])


def _layer_of(name: str) -> str:
    """The layer that a module's name puts it in: `decoder 3`, `3`, or `shared`."""
    number = re.search(r"\.(\d+)\.", name.split(".relpos")[0] + ".")
    stack = "decoder " if re.search(r"(^|\.)decoder\.", name) else ""
    return f"{stack}{number.group(1)}" if number else f"{stack}shared"


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
