"""Attention problems: their tensors, their masks, and their solution by an engine and by the reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import reference
import torch
from torch import Tensor

from hf_relpos.engines import attend
from hf_relpos.engines.cpu import library
from hf_relpos.masks import AttentionMask
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.terms import RelativeTerms

# What users can ask for here: where the kernel is not compiled, "fused" is only a name.
CHOICES = tuple(name for name in ENGINE_NAMES if name != "fused" or not isinstance(library.load(), str))

# Of every engine, the constants that cut even short inputs into several blocks. (Those of "fused" are compiled in.)
SMALL_BLOCKS: dict[str, dict[str, int]] = {
    "plain": {},
    "fused": {},
    "eager": {},
    "blockwise": {"hf_relpos.engines.blockwise.BLOCK_SCORES": 1, "hf_relpos.engines.blockwise.LEAST_QUERIES": 3},
}

TERMS = ("bias", "query", "key", "value", "gate", "native_bias")


@dataclass
class Case:
    """One attention problem: its tensors by name, and its mask in the terms of the record and of the reference."""

    tensors: dict[str, Tensor]
    scale: float = 0.37
    query_offset: int = 0
    rules: dict[str, Any] = field(default_factory=dict)
    pattern: Any = None
    rule: Any = None
    tensor_offset: bool = False

    def terms(self, tensors: dict[str, Tensor]) -> RelativeTerms:
        return RelativeTerms(**{name: tensors[name] for name in TERMS if name in tensors})

    def mask(self, tensors: dict[str, Tensor]) -> AttentionMask:
        return AttentionMask(
            query_length=tensors["q"].shape[2],
            key_length=tensors["k"].shape[2],
            query_offset=torch.tensor(self.query_offset) if self.tensor_offset else self.query_offset,
            pattern=self.pattern,
            **{"dense": tensors.get("dense"), **self.rules},
        )

    def allowed(self) -> Tensor:
        (batch, heads, queries, _), keys = self.tensors["q"].shape, self.tensors["k"].shape[2]
        rules = {"dense": self.tensors.get("dense"), **self.rules}
        return reference.allowed_pairs(
            batch, heads, queries, keys, query_offset=self.query_offset, rule=self.rule, **rules
        )

    def by(self, engine: str, tensors: dict[str, Tensor], dropout: float = 0.0) -> Tensor:
        """The output by one of the engines."""
        return attend(
            tensors["q"], tensors["k"], tensors["v"], self.terms(tensors), self.mask(tensors),
            scale=self.scale, dropout=dropout, engine=engine,
        )[0]  # fmt: skip

    def by_reference(self, tensors: dict[str, Tensor], keep: Tensor | None = None) -> Tensor:
        return self.reference_with_weights(tensors, keep)[0]

    def reference_with_weights(self, tensors: dict[str, Tensor], keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        dense = tensors.get("dense")
        return reference.attention(
            tensors["q"], tensors["k"], tensors["v"], self.terms(tensors), scale=self.scale,
            query_offset=self.query_offset, allowed=self.allowed(), keep=keep,
            added=None if dense is None else dense.masked_fill(dense == float("-inf"), 0.0),
        )  # fmt: skip

    def expected(self, keep: Tensor | None = None) -> dict[str, Tensor]:
        return reference.output_and_gradients(partial(self.by_reference, keep=keep), self.tensors)

    def actual(self, engine: str) -> dict[str, Tensor]:
        return reference.output_and_gradients(partial(self.by, engine), self.tensors)

    def to(self, dtype: torch.dtype) -> Case:
        return replace(self, tensors={name: tensor.to(dtype) for name, tensor in self.tensors.items()})


def make_case(
    terms: tuple[str, ...] = TERMS,
    *,
    batch: int = 2,
    heads: int = 4,
    key_heads: int | None = None,
    queries: int = 7,
    keys: int | None = None,
    dim: int = 5,
    value_dim: int = 3,
    k: int | dict[str, int] = 3,
    shared: bool = False,
    gate_batch: int | None = None,
    seed: int = 0,
    **more: Any,
) -> Case:
    """A problem with random numbers of size 1 everywhere, tables included."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def rows(name: str) -> int:
        return 2 * (k if isinstance(k, int) else k[name]) + 1

    keys = queries if keys is None else keys
    key_heads = heads if key_heads is None else key_heads
    tables = 1 if shared else heads
    tensors = {
        "q": random(batch, heads, queries, dim),
        "k": random(batch, key_heads, keys, dim),
        "v": random(batch, key_heads, keys, value_dim),
    }
    for name in terms:
        if name == "gate":
            tensors[name] = random(batch if gate_batch is None else gate_batch, heads, queries)
        elif name in ("bias", "native_bias"):
            tensors[name] = random(tables, rows(name))
        else:
            tensors[name] = random(tables, rows(name), value_dim if name == "value" else dim)
    return Case(tensors, **more)
