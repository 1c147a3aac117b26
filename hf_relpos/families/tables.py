"""What stands in the place of a native table in a patched model: the table gated, or nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init


class NativeGate(nn.Module):
    """One learned factor on a native table, ``[1]``, that starts at 1.

    A module of its own, so that an adapter can train and save the gate without the table.

    Args:
        like: a tensor whose dtype and device the factor takes.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        # One element rather than none: sharding needs a dimension to shard.
        self.weight = nn.Parameter(torch.ones(1, dtype=like.dtype, device=like.device))

    def reset_relpos_parameters(self) -> None:
        """Open the gate: 1 (skipped if already loaded from a checkpoint)."""
        init.ones_(self.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """The table's rows, times the factor."""
        return rows * self.weight


class GatedTable(nn.Embedding):
    """The class a native table gets when its model is patched: the same weight under the same name.

    Attributes:
        relpos_gate: the table's gate (with ``native="gate"``), or None.
    """

    relpos_original: type = nn.Embedding
    relpos_gate: NativeGate | None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the table gives for whatever its class takes, times the gate."""
        rows = super().forward(*args, **kwargs)
        return rows if self.relpos_gate is None else self.relpos_gate(rows)


class BoundedTable(nn.Embedding):
    """A table with one row per position, and an error beyond the last.

    Attributes:
        relpos_first: the row of position 0; there may be others before it.
    """

    relpos_first: int = 0

    def forward(self, ids: Tensor) -> Tensor:
        """The table's rows.

        Args:
            ids: of the rows, whole numbers of any shape.

        Raises:
            ValueError: for positions beyond the table; names the limit and the ways out.
        """
        length = self.num_embeddings - self.relpos_first
        if not torch.compiler.is_compiling() and self._may_be_beyond(ids, length):
            last = int(ids.max()) - self.relpos_first
            if last >= length:
                raise ValueError(
                    f"Position {last} (counted from 0) is beyond the {length} positions this model was "
                    f"pretrained with. Shorten the input to {length} tokens (truncation=True in the tokenizer); make "
                    "a copy that reads longer ones (hf_relpos.convert, which learns from texts without labels); or "
                    'patch it with RelPosConfig(native="drop", ...), which takes the limit away, and train it.'
                )
        return super().forward(ids)

    def _may_be_beyond(self, ids: Tensor, length: int) -> bool:
        """Whether the ids are worth a look: on an accelerator that means waiting for all work before it."""
        if ids.device.type == "meta":
            return False
        look_is_cheap = ids.device.type == "cpu" or not self.training
        return ids.numel() > 0 and (look_is_cheap or ids.shape[-1] > length)


class PositionTable(GatedTable, BoundedTable):
    """A native table of absolute positions."""


@cache
def gated_class(base: Any, bounded: bool) -> type:
    """The class that a native table of a class gets.

    A class of its own (BART's, which adds an offset to the positions it is given) keeps its ``forward``: the gate acts
    on what that returns, and the bound on the ids that it asks ``nn.Embedding`` for.

    Args:
        base: ``nn.Embedding``, or a class derived from it.
        bounded: whether it has one row per position.
    """
    if base is nn.Embedding:
        return PositionTable if bounded else GatedTable
    bases = (GatedTable, base, BoundedTable) if bounded else (GatedTable, base)
    return type(
        f"RelPos{base.__name__}",
        bases,
        {
            "__module__": __name__,
            "__doc__": f"``{base.__name__}`` with a gate.",
            "relpos_original": base,
            # Such a class has no place where pickle could find it, so it is made again.
            "__reduce__": lambda table: (_blank, (base, bounded), vars(table)),
        },
    )


def _blank(base: type, bounded: bool) -> Any:
    """A table of such a class, to be filled by pickle or a deep copy."""
    made: Any = gated_class(base, bounded)
    return made.__new__(made)


def ungate(model: nn.Module) -> None:
    """Make every native table in a model what it was, without its gate."""
    for table in [module for module in model.modules() if isinstance(module, GatedTable)]:
        del table.relpos_gate
        vars(table).pop("relpos_first", None)
        table.__class__ = type(table).relpos_original


class DroppedTable(nn.Module):
    """Stands where absolute positions were: adds nothing, has no parameter, knows no limit."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """A zero without dimensions, which takes on the dtype of whatever it is added to.

        Args:
            *args: what the table took; the zero is on the device of the first tensor among them. Where there is none
                (Marian's table takes a shape), it is on the CPU, from where a single number goes to any device.
            **kwargs: likewise.
        """
        devices = (given.device for given in (*args, *kwargs.values()) if isinstance(given, Tensor))
        return torch.zeros((), device=next(devices, "cpu"))
