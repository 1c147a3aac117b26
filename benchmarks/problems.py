"""The attention problems that engines and peers are given: random states, and a scheme with random tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hf_relpos import ClippedBias, Shaw, T5Bias
from hf_relpos.engines import ENGINES, attend
from hf_relpos.engines.engine import Case
from hf_relpos.masks import AttentionMask
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.schemes import AttentionGeometry
from hf_relpos.schemes.base import Scheme, SchemeConfig
from hf_relpos.terms import RelativeTerms

HEADS, HEAD_DIM = 12, 64
SCALE = HEAD_DIM**-0.5
SCHEMES: dict[str, SchemeConfig] = {
    "Shaw(8)": Shaw(8),
    "Shaw(16)": Shaw(16),
    "Shaw(32)": Shaw(32),
    "T5Bias()": T5Bias(),
    "ClippedBias(128)": ClippedBias(128),
}
TABLE_STD = 0.5


@dataclass(frozen=True, eq=False)
class Problem:
    """Attention of a sequence to itself.

    Attributes:
        query: ``[batch, heads, length, head_dim]``, like ``key``, ``value``, and ``cotangent``, the gradient of the
            output.
        scheme: holds the tables as its parameters.
        causal: whether later keys are hidden.
        window: how far away a key may be, if that is bounded.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    cotangent: Tensor
    scheme: Scheme
    causal: bool
    window: int | None = None

    @property
    def length(self) -> int:
        """The number of queries, and of keys."""
        return self.query.shape[2]

    @property
    def device(self) -> torch.device:
        """Where all of it is."""
        return self.query.device

    @property
    def mask(self) -> AttentionMask:
        """The mask as the engines take it."""
        return AttentionMask(self.length, self.length, causal=self.causal, window=self.window)

    def terms(self) -> RelativeTerms:
        """What the scheme's tables are to the engines; part of the work that is measured."""
        return self.scheme.tables(self.mask.reach, self.query)

    def leaves(self) -> dict[str, Tensor]:
        """Everything that gets a gradient."""
        return {"query": self.query, "key": self.key, "value": self.value, **dict(self.scheme.named_parameters())}

    def offsets(self) -> Tensor:
        """Key position less query position, ``[length, length]``."""
        at = torch.arange(self.length, device=self.device)
        return at - at[:, None]

    def later(self) -> Tensor:
        """True where the key is after the query, ``[length, length]``."""
        return self.offsets() > 0

    def backward(self, output: Tensor) -> None:
        """Give every leaf its gradient, and nothing of an earlier pass."""
        for leaf in self.leaves().values():
            leaf.grad = None
        output.backward(self.cotangent)


def make(
    scheme: str,
    length: int,
    *,
    causal: bool = False,
    batch: int = 1,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """A problem with random numbers everywhere, the same ones for equal arguments."""
    generator = torch.Generator().manual_seed(length)
    module = SCHEMES[scheme].build(AttentionGeometry(num_heads=HEADS, head_dim=HEAD_DIM, causal=causal))
    for table in module.parameters():
        nn.init.normal_(table, std=TABLE_STD, generator=generator)
    states = [torch.randn(batch, length, HEADS, HEAD_DIM, generator=generator) for _ in range(4)]
    # As a model's projections lay them out: all heads of a token together.
    query, key, value, cotangent = (state.to(device, dtype).transpose(1, 2) for state in states)
    for state in (query, key, value):
        state.requires_grad_()
    return Problem(query, key, value, cotangent, module.to(device, dtype), causal)


def plain(problem: Problem) -> Tensor:
    """The same attention without positions: what all times are compared with."""
    return scaled_dot_product_attention(problem.query, problem.key, problem.value, is_causal=problem.causal)


def by_engine(engine: str, problem: Problem) -> Tensor:
    """The output by an engine, or by the one that ``"auto"`` picks."""
    output, _ = attend(
        problem.query, problem.key, problem.value, problem.terms(), problem.mask, scale=SCALE, engine=engine
    )
    return output


def engine_names() -> list[str]:
    """``"auto"``, and the engines there are."""
    return list(ENGINE_NAMES)


def engine_refuses(engine: str, problem: Problem, backward: bool) -> str | None:
    """What of the problem an engine cannot take, with the backward pass or without; None if it takes it."""
    if engine == "auto":
        return None
    with torch.set_grad_enabled(backward):
        case = Case(problem.query, problem.key, problem.value, problem.terms(), problem.mask)
        reason = ENGINES[engine].refuses(case)
    return f"does not take {reason}" if reason else None


def solver(engine: str) -> Callable[[Problem], Callable[[], Tensor]]:
    """For an engine: from a problem to the work it is."""
    return lambda problem: partial(by_engine, engine, problem)
