"""What a patch has learned about positions: tables and gates, read out of a patched model's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_relpos.errors import PatchStateError
from hf_relpos.families.tables import NativeGate
from hf_relpos.gates import HeadGate, TokenGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling import state
from hf_relpos.modeling.finding import patched_inside
from hf_relpos.schemes.base import LearnedTables
from hf_relpos.terms import RelativeTerms

# Each kind of table, and what is shown of it where the heads are taken together.
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
        values: What stands in it, `[layers, heads or 1, 2k + 1]`: of a bias the numbers, of vectors their lengths.
            Heads that a layer does not have are not a number.
        similarity: Of vectors, the cosine of those at two offsets, mean over the heads, `[layers, 2k + 1, 2k + 1]`; not
            a number where one has no length. None for a bias.
        unreached: Where training has moved nothing, `[layers, 2k + 1]`.
    """

    layers: list[str]
    values: np.ndarray
    similarity: np.ndarray | None
    unreached: np.ndarray

    @property
    def strength(self) -> np.ndarray:
        """How much stands in it per layer and offset, `[layers, 2k + 1]`: the mean size over the heads."""
        return np.nanmean(np.abs(self.values), axis=1)


@dataclass(frozen=True)
class Learned:
    """What the parameters of a patch hold, as pictures and reports need it.

    Attributes:
        tables: The tables, by their kind.
        gate_layers: Names of the layers with a gate.
        gates: The gate of each of these layers and each head, `[gate layers, heads]`; None without gates. One that is
            computed from each query is shown for a query of zeros.
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
        PatchStateError: If the model is not patched.
    """
    if not state.is_patched_model(model):
        raise PatchStateError(
            f"{type(model).__name__} is not patched. Patch it with hf_relpos.patch_model, or `hf-relpos patch`, first. "
            f"{patched_inside(model)}".rstrip()
        )
    tables: dict[str, list[tuple[str, np.ndarray, np.ndarray | None, np.ndarray]]] = {}
    for name, layer in patched_layers(model):
        terms = _tables(layer)
        # Only where a table is all parameters, and they start at zero, does a zero say that nothing has moved it.
        starts_at_zero = all(isinstance(s, LearnedTables) and s.starts_exact for s in layer.config.scheme_configs)
        for kind in TABLES:
            table = getattr(terms, kind)
            if table is not None:
                values = _array(table if table.ndim == 2 else table.norm(dim=-1))
                similarity = None if table.ndim == 2 else _array(_cosines(table))
                unreached = (values == 0).all(0) & starts_at_zero
                tables.setdefault(kind, []).append((name, values, similarity, unreached))
    gates = dict(_gates(model))
    return Learned(
        tables={
            kind: Table(
                list(names),
                filled_up(values),
                None if similarity[0] is None else np.stack(similarity),
                np.stack(unreached),
            )
            for kind, (names, values, similarity, unreached) in (
                (kind, zip(*rows, strict=True)) for kind, rows in tables.items()
            )
        },
        gate_layers=list(gates),
        gates=filled_up(list(gates.values())) if gates else None,
        native={
            name.removesuffix(".relpos_gate"): float(module.weight)
            for name, module in model.named_modules()
            if isinstance(module, NativeGate)
        },
    )


def count_parameters(model: PreTrainedModel) -> dict[str, int]:
    """How many parameters each scheme, and each kind of gate, has in all layers of a patched model together."""
    counts: dict[str, int] = {}
    gates, native = 0, 0
    for _, module in state.added_modules(model):
        if isinstance(module, NativeGate):
            native += _size(module)
            continue
        for config, scheme in zip(module.config.scheme_configs, module.schemes, strict=bool(module.schemes)):
            counts[str(config)] = counts.get(str(config), 0) + _size(scheme)
        gates += 0 if module.gate is None else _size(module.gate)
    return {**counts, "gates on the relative terms": gates, "gates on the pretrained positions": native}


def patched_layers(model: nn.Module) -> Iterator[tuple[str, RelPosLayer]]:
    """The layers of relative positions that have some, each with its name: `3`, `decoder 3`, `shared`."""
    for path, module in model.named_modules():
        if isinstance(module, RelPosLayer) and module.schemes:
            yield layer_name(path), module


def filled_up(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of a row for each head as one array: the heads that an array lacks are not a number."""
    most = max(map(len, rows))
    return np.stack(
        [np.pad(row, [(0, most - len(row)), *[(0, 0)] * (row.ndim - 1)], constant_values=np.nan) for row in rows]
    )


def unreached_in_words(learned: Learned) -> list[str]:
    """A line for each part of a table that training has not reached: kind, layers, offsets."""
    layers: dict[tuple[str, int, int], list[str]] = {}
    for kind, table in learned.tables.items():
        for layer, row in zip(table.layers, table.unreached, strict=True):
            for first, last in _runs(row):
                layers.setdefault((kind, first, last), []).append(layer)
    return [
        f"{TABLES[kind].partition(':')[0]}, layer{'s'[: len(names) - 1]} {', '.join(names)}: offsets {first} to {last}"
        for (kind, first, last), names in layers.items()
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
            yield layer_name(name), _array(module.weight)
        elif isinstance(module, TokenGate):  # what it is for a query of zeros
            yield layer_name(name), _array(2 * torch.sigmoid(module.bias))


def _tables(layer: RelPosLayer) -> RelativeTerms:
    """The tables of a layer's schemes together; of one without a horizon, as much as of the others."""
    schemes: Any = layer.schemes
    horizons = [scheme.horizon for scheme in layer.config.scheme_configs if scheme.horizon is not None]
    reach = max(horizons, default=FARTHEST)
    return reduce(add, [scheme.tables(reach, torch.empty(0)) for scheme in schemes])


def _cosines(table: Tensor) -> Tensor:
    """The cosine of the vectors `[heads, offsets, dim]` at two offsets, mean over the heads, `[offsets, offsets]`."""
    unit = table / table.norm(dim=-1, keepdim=True)
    return (unit @ unit.transpose(-1, -2)).mean(0)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def layer_name(name: str) -> str:
    """The layer that a module's name puts it in: `decoder 3`, `3`, or `shared`."""
    number = re.search(r"\.(\d+)\.", name.split(".relpos")[0] + ".")
    stack = "decoder " if re.search(r"(^|\.)decoder\.", name) else ""
    return f"{stack}{number.group(1)}" if number else f"{stack}shared"


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
