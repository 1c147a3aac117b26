"""For engines that compute again in the backward pass: from what they had, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_relpos.compat import pytorch
from hf_relpos.masks import AttentionMask, Pattern


class Unchanged:
    """Tensors by name, to be found as they are now.

    What autograd saves it watches itself. This is for all that a recomputation reads besides.
    """

    def __init__(self, tensors: Mapping[str, Tensor | None]) -> None:
        self._tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self._versions = {name: pytorch.version(tensor) for name, tensor in self._tensors.items()}

    def check(self) -> None:
        """Look.

        Raises:
            RuntimeError: if one was changed in place; names it.
        """
        for name, tensor in self._tensors.items():
            if pytorch.version(tensor) != self._versions[name]:
                raise RuntimeError(
                    f"The {name} of attention, {list(tensor.shape)}, was changed in place between its forward and its "
                    "backward pass, which computes from it again. Change it after the backward pass, or give attention "
                    "a copy (`.clone()`)."
                )


def remembered(mask: AttentionMask) -> AttentionMask:
    """The mask for one block: its pattern, which may read anything, is asked once; the answer is kept, a bit a pair."""
    return mask if mask.pattern is None else replace(mask, pattern=_Remembered(mask.pattern))


class _Remembered:
    """A pattern that answers as it answered the first time."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._bits: Tensor | None = None

    def __call__(self, query_at: Tensor, key_at: Tensor) -> Tensor:
        if self._bits is None:
            allowed = self._pattern(query_at, key_at)
            self._bits = packed(allowed)
            return allowed
        return unpacked(self._bits, key_at.shape[-1])


def _places(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)


def packed(bools: Tensor) -> Tensor:
    """Eight bools ``[..., n]`` of a row in a byte ``[..., (n + 7) // 8]``."""
    padded = F.pad(bools, (0, -bools.shape[-1] % 8))
    return (padded.unflatten(-1, (-1, 8)) * _places(bools.device)).sum(-1, dtype=torch.uint8)


def unpacked(bits: Tensor, count: int) -> Tensor:
    """The bools ``[..., count]`` that were :func:`packed`."""
    return (bits.unsqueeze(-1) & _places(bits.device)).ne(0).flatten(-2)[..., :count]
