"""A bias that falls linearly with the distance, with a slope per head.

Press, Smith, Lewis 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
https://arxiv.org/abs/2108.12409, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_relpos.schemes.base import AttentionGeometry, Scheme, SchemeConfig
from hf_relpos.terms import RelativeTerms


@dataclass(frozen=True)
class ALiBi(SchemeConfig):
    """``-slope * |offset|``, added to the scores outside their scale, at any distance; keys on both sides count alike.

    Attributes:
        learned: learn the slopes, per layer and head, from the fixed ones on; the paper keeps them fixed.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "alibi"
    parts = frozenset({"bias"})
    horizon = None
    starts_exact = False

    learned: bool = False

    def __post_init__(self) -> None:
        self._check_bool("learned")

    @property
    def learns(self) -> bool:
        """Whether the slopes do."""
        return self.learned

    def build(self, geometry: AttentionGeometry) -> ALiBiScheme:
        """The slopes for one layer."""
        return ALiBiScheme(self, geometry)


class ALiBiScheme(Scheme):
    """A bias ``[heads, 2 * reach + 1]``, as wide as the call needs."""

    def __init__(self, config: ALiBi, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.num_heads = geometry.num_heads
        self.slopes = LearnedSlopes(geometry.num_heads) if config.learned else None

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """The bias, in float32 at least: in bfloat16 distances from 257 on would be rounded."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        slopes = slopes_of(self.num_heads, dtype, like.device) if self.slopes is None else self.slopes().to(dtype)
        distances = torch.arange(-reach, reach + 1, dtype=dtype, device=slopes.device).abs()
        return RelativeTerms(bias=-slopes[:, None] * distances)


class LearnedSlopes(nn.Module):
    """A learned slope per head, ``[heads]``."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads))
        self.reset_relpos_parameters()

    def reset_relpos_parameters(self) -> None:
        """Give the slopes their fixed values (skipped if already loaded from a checkpoint)."""
        init.copy_(self.weight, slopes_of(len(self.weight), torch.float32, self.weight.device))

    def forward(self) -> Tensor:
        """The slopes."""
        return self.weight


def slopes_of(num_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The slope of each head.

    For a power of two, ``2 ** (-8 * h / heads)`` for the heads ``h`` from 1 on. For other numbers, those of the next
    lower power of two, then every other one of the next higher, from the first on, as in the authors' code.

    They are computed where they are needed, since a tensor brought there would have the device wait.

    Returns:
        ``[heads]``.
    """
    power = 1 << (num_heads.bit_length() - 1)
    head = torch.arange(1, num_heads + 1, dtype=dtype, device=device)
    exponent = torch.where(head <= power, head / power, (2 * (head - power) - 1) / (2 * power))
    return torch.exp2(-8 * exponent)
