"""What a scheme is: a small frozen config, and a module that turns its parameters into tables over offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_relpos.errors import RelPosConfigError, refuse_unknown, wrong_value
from hf_relpos.terms import RelativeTerms

INITS = ("zeros", "trunc_normal")


@dataclass(frozen=True)
class AttentionGeometry:
    """What a scheme may know of the attention it sits in.

    Attributes:
        num_heads: number of query heads.
        head_dim: size of one head.
        causal: whether queries only look back.
    """

    num_heads: int
    head_dim: int
    causal: bool


class Scheme(nn.Module, ABC):
    """The parameters of one scheme in one layer."""

    @abstractmethod
    def forward(self) -> RelativeTerms:
        """The tables as they are now."""


@dataclass(frozen=True)
class SchemeConfig(ABC):
    """Base of the scheme configs. A subclass names itself, checks its fields and builds its module."""

    name: ClassVar[str]

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """A new config, if it has all the fields given."""
        refuse_unknown(cls.__name__, given, cls.names())
        return super().__new__(cls)

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields."""
        return [field.name for field in fields(cls)]

    @abstractmethod
    def build(self, geometry: AttentionGeometry) -> Scheme:
        """The scheme's module for one attention layer, with parameters on the current default device.

        Raises:
            RelPosConfigError: if the scheme cannot act in this attention.
        """

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """The offset from which on all positions look alike."""

    def advice(self, trained_length: int | None) -> str | None:
        """What to tell somebody who chose this scheme for a model trained with so many positions; None for nothing."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the fields and ``type``, the scheme's name."""
        return {"type": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}

    # Checks shared by the subclasses' ``__post_init__``.

    def _wrong(self, field: str, allowed: str) -> RelPosConfigError:
        return wrong_value(type(self).__name__, field, getattr(self, field), allowed)

    def _check_positive_int(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self._wrong(name, "a whole number of at least 1")

    def _check_bool(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise self._wrong(name, "True or False")

    def _check_init(self) -> None:
        if self.init not in INITS:  # type: ignore[attr-defined]
            raise self._wrong("init", "one of " + ", ".join(map(repr, INITS)))
        std = self.init_std  # type: ignore[attr-defined]
        if not isinstance(std, (int, float)) or isinstance(std, bool) or not 0 < std < float("inf"):
            raise self._wrong("init_std", "a positive number")


class LearnedTable(nn.Module):
    """A learned table ``[tables, rows]`` or ``[tables, rows, dim]``, dense or as a product of two thin factors.

    Args:
        shape: shape of the table.
        rank: None for a dense table; else the table is ``left @ right`` with ``rank`` columns in between.
        start: ``"zeros"`` or ``"trunc_normal"``. A factorised table that starts at zero keeps its right factor
            random, so that both factors can learn.
        std: standard deviation of a random start, cut off at two of them.
    """

    def __init__(self, *shape: int, rank: int | None = None, start: str = "zeros", std: float = 0.02) -> None:
        super().__init__()
        self.start = start
        self.std = std
        if rank is None:
            self.weight = nn.Parameter(torch.empty(*shape))
        else:
            *leading, rows, dim = shape
            self.left = nn.Parameter(torch.empty(*leading, rows, rank))
            self.right = nn.Parameter(torch.empty(*leading, rank, dim))
        self.reset_relpos_parameters()

    def reset_relpos_parameters(self) -> None:
        """Give every parameter its documented start value (skips those already loaded from a checkpoint)."""
        if hasattr(self, "weight"):
            self._start(self.weight, self.std)
        else:
            rank = self.right.shape[-2]
            # The product of the two factors has the standard deviation asked for.
            self._start(self.left, rank**-0.5)
            init.trunc_normal_(self.right, std=self.std, a=-2 * self.std, b=2 * self.std)

    def _start(self, parameter: nn.Parameter, std: float) -> None:
        if self.start == "zeros":
            init.zeros_(parameter)
        else:
            init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    def forward(self) -> Tensor:
        """The table in its full shape."""
        return self.weight if hasattr(self, "weight") else self.left @ self.right

    def extra_repr(self) -> str:
        """Shapes, for ``print(model)``."""
        if hasattr(self, "weight"):
            return "x".join(map(str, self.weight.shape))
        return f"{'x'.join(map(str, self.left.shape))} @ {'x'.join(map(str, self.right.shape))}"
