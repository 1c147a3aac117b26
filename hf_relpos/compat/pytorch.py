"""PyTorch: what it does not say by public names. A release that moves one of them is mended here."""

from __future__ import annotations

import torch
from torch import Tensor


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work: tensors made now may be wrappers that end with it."""
    return torch._C._are_functorch_transforms_active()


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor stands for many, under ``vmap`` or as one of the gradients of ``is_grads_batched``."""
    return torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)


def version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None for one of inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version
