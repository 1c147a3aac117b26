"""For engines with a backward pass of their own: what they cannot derive is refused in words, never left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from hf_relpos.compat import pytorch

Backward = Callable[[Any, Tensor], tuple[Tensor | None, ...]]

WAY_OUT = "`engine='eager'` has them, and `engine='blockwise'` has them in memory that grows linearly with the length."


def first_order(backward: Backward) -> Backward:
    """A backward pass of `torch.autograd.Function` that computes gradients which can't be derived once more.

    Unlike PyTorch's ``once_differentiable`` the error comes on every path to what the gradients depend on. There,
    ``torch.autograd.grad`` of chosen inputs passes the error by, and what went through attention is missing.

    Raises:
        RuntimeError: in the backward pass for many gradients at once, or when a gradient is derived; names the engines
            that can.
    """

    @wraps(backward)
    def checked(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if pytorch.is_batched(grad):
            raise RuntimeError(
                "The engine that attention ran with has no batched gradients (`is_grads_batched`, or `vmap` over a "
                f"backward pass). {WAY_OUT}"
            )
        with torch.no_grad():
            grads = backward(ctx, grad)
        if not torch.is_grad_enabled():
            return grads
        known = [number for number, tensor in enumerate(grads) if tensor is not None]
        final = list(grads)
        sources = [tensor for tensor in ctx.saved_tensors if tensor is not None]
        refusing = _Final.apply(len(known), *(grads[number] for number in known), grad, *sources)
        for number, tensor in zip(known, refusing, strict=True):
            final[number] = tensor
        return tuple(final)

    return checked


class _Final(torch.autograd.Function):
    """Hands some tensors on, the first ``count``, as functions of all that are given; not to be derived."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(f"The engine that attention ran with has no second derivatives. {WAY_OUT}")
