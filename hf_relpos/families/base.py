"""What the package has to know of a model family: where things are, in names. No copy of any forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from hf_relpos.schemes import AttentionGeometry


def _never(path: str, attention: nn.Module) -> bool:
    return False


@dataclass(frozen=True)
class NativePositions:
    """The positions that a family is pretrained with: an embedding table, found by its owner's class.

    Attributes:
        owner: class name of the module that has the table.
        table: the attribute that is the table.
        is_bias: True for a bias on the scores (T5), False for embeddings added to the input.
    """

    owner: str
    table: str
    is_bias: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """One model family. Class names are those in its ``transformers.models.<package>.modeling_<package>``.

    Attributes:
        package: the family's package, which is also its ``model_type``.
        config: class name of its config.
        attention: class name of the modules that do self-attention.
        num_heads: their attribute with the number of heads.
        head_dim: their attribute with the size of a head.
        causal: their attribute that says whether queries only look back.
        native: the positions it is pretrained with.
        is_cross_attention: tells modules of that class that do cross-attention, from their path and themselves.
        max_positions: config attribute with the number of absolute positions; None where length is not bounded.
        overrides: class name to the mixin that adjusts what those modules do; see the family's file for why.
        adapters_like: the model type whose modules are called alike, where PEFT has no default targets for its own.
    """

    package: str
    config: str
    attention: str
    num_heads: str
    head_dim: str
    causal: str
    native: NativePositions
    is_cross_attention: Callable[[str, nn.Module], bool] = _never
    max_positions: str | None = None
    overrides: Mapping[str, type] = field(default_factory=dict)
    adapters_like: str | None = None

    @cached_property
    def modeling(self) -> ModuleType:
        """The family's modeling module, imported on first use (it is what makes Transformers slow to import)."""
        return import_module(self.modeling_name)

    @property
    def modeling_name(self) -> str:
        """The name of that module."""
        return f"transformers.models.{self.package}.modeling_{self.package}"

    @property
    def prefix(self) -> str:
        """How the names of the family's classes begin."""
        return self.config.removesuffix("Config")

    @cached_property
    def config_class(self) -> Any:
        """The family's config class."""
        return getattr(import_module(f"transformers.models.{self.package}.configuration_{self.package}"), self.config)

    def geometry(self, attention: Any) -> AttentionGeometry:
        """The heads and direction of one self-attention module."""
        return AttentionGeometry(
            num_heads=getattr(attention, self.num_heads),
            head_dim=getattr(attention, self.head_dim),
            # Transformers lets a config turn a causal model's mask bidirectional.
            causal=bool(getattr(attention, self.causal) and getattr(attention.config, "is_causal", True)),
        )

    def trained_length(self, config: Any) -> int | None:
        """How many absolute positions a model has; None where length is not bounded."""
        return None if self.max_positions is None else getattr(config, self.max_positions)
