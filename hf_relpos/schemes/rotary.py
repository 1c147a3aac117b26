"""Queries and keys rotated by their positions, so that their products depend on the offset.

Su, Lu, Pan, Murtadha, Wen, Liu 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
https://arxiv.org/abs/2104.09864, section 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_relpos.calls import AttentionCall
from hf_relpos.schemes.base import AttentionGeometry, Scheme, SchemeConfig


@dataclass(frozen=True)
class Rotary(SchemeConfig):
    """Pairs of numbers of queries and keys, rotated: the ``n / 2`` pairs ``i`` by ``position * base ** (-2 i / n)``.

    A pair is number ``i`` and number ``i + n / 2`` of a head, as in Llama; the paper pairs neighbours.

    Attributes:
        base: how slowly the slowest pair turns: once in ``2 pi * base`` positions, about.
        fraction: the part of a head that is rotated, its first numbers; the rest knows no positions.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "rotary"
    parts = frozenset({"rotation"})
    horizon = None
    starts_exact = False
    learns = False

    base: float = 10000.0
    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not _is_number(self.base) or not 1 < self.base < float("inf"):
            raise self._wrong("base", "a number above 1")
        if not _is_number(self.fraction) or not 0 < self.fraction <= 1:
            raise self._wrong("fraction", "a number above 0 and at most 1")

    def build(self, geometry: AttentionGeometry) -> RotaryScheme:
        """The rotation for one layer.

        Raises:
            RelPosConfigError: if the rotated part of a head cannot be split into pairs.
        """
        size = round(self.fraction * geometry.head_dim)
        if size != self.fraction * geometry.head_dim or size % 2:
            raise self._wrong(
                "fraction",
                f"such that an even number of the {geometry.head_dim} numbers of a head is rotated, in pairs; "
                f"it would be {self.fraction * geometry.head_dim:g}",
            )
        return RotaryScheme(self.base, size)


class RotaryScheme(Scheme):
    """A rotation of the first ``size`` numbers of each head; no parameters."""

    def __init__(self, base: float, size: int) -> None:
        super().__init__()
        self.base = base
        self.size = size

    def rotate(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by where they stand among the keys."""
        queries = torch.arange(call.query.shape[2], device=call.query.device) + call.mask.query_offset
        keys = torch.arange(call.key.shape[2], device=call.key.device)
        return self._rotated(call.query, queries), self._rotated(call.key, keys)

    def _rotated(self, states: Tensor, positions: Tensor) -> Tensor:
        """States ``[batch, heads, length, head_dim]`` rotated by positions ``[length]``, in float32 at least."""
        dtype = torch.promote_types(states.dtype, torch.float32)
        pairs = torch.arange(0, self.size, 2, dtype=dtype, device=states.device)
        angles = positions[:, None].to(dtype) * self.base ** (-pairs / self.size)
        cos, sin = angles.cos(), angles.sin()
        first, second, rest = states.split((self.size // 2, self.size // 2, states.shape[-1] - self.size), dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
        return turned.to(states.dtype)

    def extra_repr(self) -> str:
        """The numbers it turns with."""
        return f"size={self.size}, base={self.base}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
