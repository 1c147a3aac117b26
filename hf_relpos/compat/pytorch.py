"""PyTorch: what it does not say by public names. A release that moves one of them is mended here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

# What wrappers put into the names of modules and parameters, and take out again when they save.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work: tensors made now may be wrappers that end with it."""
    return torch._C._are_functorch_transforms_active()


def in_forward_mode() -> bool:
    """Whether tensors may carry derivatives along."""
    return forward_ad._current_level >= 0


def below_autograd() -> AbstractContextManager[None]:
    """While it is entered operators compute, and autograd does not record them."""
    return torch._C._AutoDispatchBelowAutograd()


def is_watched() -> bool:
    """Whether a dispatch mode looks on, as a tracer or a counter of operations does: it must see operators."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_batched(tensor: Tensor) -> bool:
    """Whether a tensor stands for many, under ``vmap`` or as one of the gradients of ``is_grads_batched``."""
    return torch._C._functorch.is_batchedtensor(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)


def version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None for one of inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def without_wrappers(name: str) -> str:
    """The name of a module or parameter as it is without FSDP, activation checkpointing and ``torch.compile``."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def are_flattened(names: Iterable[str]) -> bool:
    """Whether these names of parameters are those of the first FSDP, which hides the model's until it loads."""
    return any("_flat_param" in name for name in names)


def is_compiled(module: nn.Module) -> bool:
    """Whether ``torch.compile`` has changed a module in place, or wraps it."""
    wrapped = type(module).__module__.startswith("torch._dynamo.")
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def is_replica(module: nn.Module) -> bool:
    """Whether a module is a copy that ``DataParallel`` has made for one pass."""
    return getattr(module, "_is_replica", False)
