"""One set of relative positions for all layers of a stack: how a layer finds that of its stack."""

from __future__ import annotations

from typing import Any

from torch import nn

from hf_relpos.compat.pytorch import is_replica
from hf_relpos.layer import RelPosLayer

# Where an attention module keeps its `SharedFrom` when all layers of its stack share one `relpos`.
SHARED_FROM = "_relpos_stack"


class SharedFrom:
    """Points to the stack's module whose `relpos` its layers share.

    An object of its own, so that PyTorch does not take the stack for a child, and so that copying a layer alone does
    not copy the stack: the copy uses the tables of the original's. It points to the stack, not to its `relpos`, so that
    an adapter that wraps the latter is not bypassed.

    Args:
        stack: the module that has `relpos`.
    """

    def __init__(self, stack: nn.Module) -> None:
        self._stack = stack
        self._copied: dict[int, Any] | None = None

    @property
    def stack(self) -> Any:
        """The stack's module."""
        if self._copied is not None:
            self._stack = self._copied.get(id(self._stack), self._stack)
            self._copied = None
        return self._stack

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedFrom:
        """Points to the stack's copy if the stack is copied too, else to the stack itself."""
        copied = SharedFrom(memo.get(id(self.stack), self.stack))
        if copied._stack is self._stack:
            # The stack may still come: what is met before it is copied before it. The first use finds out.
            copied._copied = memo
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Where it points to; for pickle, which follows it."""
        return {"_stack": self.stack, "_copied": None}


def relpos_of(attention: nn.Module) -> RelPosLayer | None:
    """The relative positions an attention module uses, its own or its stack's; None if it has none."""
    own = attention._modules.get("relpos")
    if own is None and SHARED_FROM in attention.__dict__:
        if is_replica(attention):
            raise RuntimeError(
                "torch.nn.DataParallel cannot run a model patched with share_layers=True: its copies of the layers"
                " would all use the first device's tables. Use DistributedDataParallel (torchrun, accelerate launch),"
                " or patch without share_layers."
            )
        own = attention.__dict__[SHARED_FROM].stack.relpos
    return own  # type: ignore[return-value]
