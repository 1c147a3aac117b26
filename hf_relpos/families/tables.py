"""The native positions of a patched model: the family's own table, kept, gated or dropped."""

from __future__ import annotations

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

    relpos_original = nn.Embedding
    relpos_gate: NativeGate | None

    def forward(self, ids: Tensor) -> Tensor:
        """The table's rows, times the gate."""
        rows = super().forward(ids)
        return rows if self.relpos_gate is None else self.relpos_gate(rows)


class PositionTable(GatedTable):
    """A native table of absolute positions: one row per position, and an error beyond the last."""

    def forward(self, ids: Tensor) -> Tensor:
        """The table's rows, times the gate.

        Raises:
            ValueError: for positions beyond the table; names the limit and the ways out.
        """
        if not torch.compiler.is_compiling() and self._may_be_beyond(ids):
            last = int(ids.max())
            if last >= self.num_embeddings:
                raise ValueError(
                    f"Position {last} (counted from 0) is beyond the {self.num_embeddings} positions this model was "
                    'pretrained with. Patch it with RelPosConfig(native="drop", ...) to be free of that limit, or '
                    f"shorten the input to {self.num_embeddings} tokens (truncation=True in the tokenizer)."
                )
        return super().forward(ids)

    def _may_be_beyond(self, ids: Tensor) -> bool:
        """Whether the ids are worth a look: on an accelerator that means waiting for all work before it."""
        if ids.device.type == "meta":
            return False
        look_is_cheap = ids.device.type == "cpu" or not self.training
        return ids.numel() > 0 and (look_is_cheap or ids.shape[-1] > self.num_embeddings)


class DroppedTable(nn.Module):
    """Stands where absolute positions were: adds nothing, has no parameter, knows no limit."""

    def forward(self, ids: Tensor) -> Tensor:
        """A zero without dimensions, which takes on the dtype of whatever it is added to."""
        return torch.zeros((), device=ids.device)
