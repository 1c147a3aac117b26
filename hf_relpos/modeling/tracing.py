"""What differs while a model is recorded, to run at other lengths than the one it is recorded with."""

from __future__ import annotations

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether the model is recorded, to run at other lengths than this one: ``torch.export``, ONNX, ``torch.jit``.

    Where engines know the queries' position as a number, they lay out offsets by comparing lengths, and the record
    would keep the outcome. The position as a tensor makes them compute the offset of every pair.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def as_tensor(number: int | torch.SymInt | Tensor, device: torch.device | None) -> Tensor:
    """A position as a tensor. A record keeps how it follows from the lengths, which `torch.as_tensor` would not."""
    if isinstance(number, torch.SymInt):
        return torch.scalar_tensor(number, dtype=torch.long, device=device)  # type: ignore[arg-type]
    return torch.as_tensor(number, device=device)
