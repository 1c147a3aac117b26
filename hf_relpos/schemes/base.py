"""What a scheme is: a small frozen config that describes itself, and a module that acts in one attention layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.errors import RelPosConfigError, refuse_unknown, wrong_value
from hf_relpos.terms import RelativeTerms

INITS = ("zeros", "trunc_normal")
MOST = 2**20  # offsets, buckets, ...: beyond the length of any text, and what a table can have memory for

# What a scheme can contribute: a table of one of four kinds, a rotation, a branch.
TABLES = frozenset({"bias", "query", "key", "value"})
PARTS = TABLES | {"rotation", "branch"}


@dataclass(frozen=True)
class AttentionGeometry:
    """What a scheme may know of the attention it sits in.

    Attributes:
        num_heads: number of query heads.
        head_dim: size of one head.
        causal: whether queries only look back.
        layer: which layer of its stack it is, counted from 0; where layers share a scheme, the first that does.
        num_layers: number of layers in the stack.
    """

    num_heads: int
    head_dim: int
    causal: bool
    layer: int = 0
    num_layers: int = 1


class Scheme(nn.Module):
    """One scheme in one layer. As it is, it contributes nothing; a subclass overrides what it has something for.

    All three are called within ``forward``, where the parameters are (see ``hf_relpos.layer.RelPosLayer``).
    """

    def forward(self, call: AttentionCall) -> Contribution:
        """What the scheme makes of a call, as its parameters are now."""
        query, key = self.rotate(call)
        return Contribution(self.tables(call.mask.reach, call.query), query, key, self.beside(call))

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """Tables over offsets, as :class:`RelativeTerms` describes them.

        Args:
            reach: the largest distance that can occur. A table may end there, and one with a horizon before it.
            like: a tensor with the device and dtype of the queries, for tables that do not follow a parameter's.
        """
        return RelativeTerms()

    def rotate(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """The queries and keys to attend with, in the shapes of the call's.

        Caches hold keys that are not rotated, so all of them are rotated each time.
        """
        return call.query, call.key

    def beside(self, call: AttentionCall) -> Tensor | None:
        """What is added to attention's output, ``[batch, heads, queries, value_dim]``, or None.

        The mask is the scheme's to keep: it has not been checked, and what it hides must not be seen.
        """
        return None


@dataclass(frozen=True)
class SchemeConfig(ABC):
    """Base of the scheme configs. A subclass names itself, checks its fields, says what it is, builds its module.

    Attributes:
        name: what the scheme is called in configs and files.
        start_fields: fields that only change where training starts; all others change the function.
    """

    name: ClassVar[str]
    start_fields: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """A new config, if it has all the fields given."""
        refuse_unknown(
            cls.__name__, given, cls.names(), "; what is no scheme's own, such as `native`, goes into RelPosConfig"
        )
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
    def parts(self) -> frozenset[str]:
        """What it contributes, of ``"bias"``, ``"query"``, ``"key"``, ``"value"``, ``"rotation"``, ``"branch"``."""

    @property
    @abstractmethod
    def horizon(self) -> int | None:
        """A distance from which on all positions look alike; None if there is none."""

    @property
    @abstractmethod
    def starts_exact(self) -> bool:
        """Whether it adds nothing until it is trained."""

    @property
    @abstractmethod
    def learns(self) -> bool:
        """Whether it has parameters."""

    @property
    def first_layers(self) -> int | None:
        """How many layers of a stack it acts in, counted from the first; None means all."""
        return None

    @property
    def function(self) -> Self:
        """This config without what only changes where training starts. Equal ones compute the same function."""
        starts = {field.name: field.default for field in fields(self) if field.name in self.start_fields}
        return replace(self, **starts)

    def advice(self, trained_length: int | None) -> str | None:
        """What to tell somebody who chose this scheme for a model trained with so many positions; None for nothing."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the fields and ``type``, the scheme's name."""
        return {"type": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}

    def __str__(self) -> str:
        """The scheme as one would write it: its sizes, and what else is not as by default. ``repr`` has all fields."""
        shown = [
            f"{field.name}={value!r}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
            or (isinstance(value, int) and not isinstance(value, bool))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    # Checks shared by the subclasses' ``__post_init__``.

    def _wrong(self, field: str, allowed: str) -> RelPosConfigError:
        return wrong_value(type(self).__name__, field, getattr(self, field), allowed)

    def _check_positive_int(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self._wrong(name, "a whole number of at least 1")
            if value > MOST:
                raise self._wrong(name, f"a whole number from 1 to {MOST}")

    def _check_bool(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise self._wrong(name, "True or False")


class LearnedTables(SchemeConfig):
    """Base of configs whose scheme is nothing but learned tables, with the fields ``init`` and ``init_std``."""

    init: str
    init_std: float

    start_fields = frozenset({"init", "init_std"})
    learns = True

    @property
    def starts_exact(self) -> bool:
        """Whether the tables start at zero."""
        return self.init == "zeros"

    def _check_init(self) -> None:
        if self.init not in INITS:
            raise self._wrong("init", "one of " + ", ".join(map(repr, INITS)))
        std = self.init_std
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
        weight: Tensor | None = getattr(self, "weight", None)
        return self.left @ self.right if weight is None else weight

    def extra_repr(self) -> str:
        """Shapes, for ``print(model)``."""
        if hasattr(self, "weight"):
            return "x".join(map(str, self.weight.shape))
        return f"{'x'.join(map(str, self.left.shape))} @ {'x'.join(map(str, self.right.shape))}"
