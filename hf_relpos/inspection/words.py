"""What was found in a model, in plain text: tables with a row for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_relpos.inspection.attention import AttentionUse
from hf_relpos.inspection.parameters import TABLES, Learned, unreached_in_words

if TYPE_CHECKING:
    from hf_relpos.inspection.record import Inspection


def in_words(inspection: Inspection) -> str:
    """All of it, one part below the other."""
    parts = [str(inspection.report), _parameters(inspection.parameters), *_learned(inspection.learned)]
    if inspection.attention is not None:
        parts += _attention(inspection.attention)
    return "\n\n".join(parts)


def _parameters(counts: dict[str, int]) -> str:
    width = max(map(len, counts))
    rows = [f"  {name:<{width}}  {count:>9,}" for name, count in counts.items() if count]
    return "\n".join(["parameters added", *(rows or ["  none"])])


def _learned(learned: Learned) -> Iterator[str]:
    tables = learned.tables
    if tables:
        layers = list(dict.fromkeys(layer for table in tables.values() for layer in table.layers))
        sizes = np.full((len(layers), len(tables)), np.nan)
        for column, table in enumerate(tables.values()):
            for layer, strength in zip(table.layers, table.strength, strict=True):
                sizes[layers.index(layer), column] = strength.mean()
        kinds = [TABLES[kind].partition(":")[0] for kind in tables]
        yield _matrix("tables: the mean length of vectors, the mean size of a bias", layers, sizes, "layer", kinds)
        if all(table.unreached.all() for table in tables.values()):
            yield "No table has been trained yet: all are zero."
        elif unreached := unreached_in_words(learned):
            yield "\n  ".join(["parts of the tables that training has not reached:", *unreached])
    if learned.gates is not None:
        yield _by_head("gates on the relative terms (1 at the start)", learned.gate_layers, learned.gates)
    if learned.native:
        rows = [f"  {name}  {value:.3f}" for name, value in learned.native.items()]
        yield "\n".join(["gates on the pretrained positions (1 at the start)", *rows])


def _attention(attention: AttentionUse) -> Iterator[str]:
    yield f"Read with {attention.texts} texts, {attention.tokens:,} tokens in all:"
    for way, moved in attention.moved.items():
        yield _by_head(f"share of the attention that goes elsewhere {way} (0 to 1)", attention.layers, moved)
    if attention.relative_share is not None:
        title = "of what positions move, the share of the relative terms (0: all pretrained, 1: all relative)"
        yield _by_head(title, attention.layers, attention.relative_share)


def _by_head(title: str, layers: Sequence[str], values: np.ndarray) -> str:
    return _matrix(title, layers, values, "layer \\ head", [str(head) for head in range(values.shape[1])])


def _matrix(title: str, layers: Sequence[str], values: np.ndarray, corner: str, columns: Sequence[str]) -> str:
    cells = [[corner, *columns], *([name, *map(_short, row)] for name, row in zip(layers, values, strict=True))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([title, *lines])


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"
