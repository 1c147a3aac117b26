"""A convolution beside attention, whose kernel each token predicts.

Wu, Fan, Baevski, Dauphin, Auli 2019, "Pay Less Attention with Lightweight and Dynamic Convolutions",
https://arxiv.org/abs/1901.10430, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_relpos.calls import AttentionCall
from hf_relpos.schemes.base import AttentionGeometry, Scheme, SchemeConfig


@dataclass(frozen=True)
class DynamicConvolution(SchemeConfig):
    """A weighted sum of the values near each token is added to attention's output, with weights the token predicts.

    ``gate_h * sum_n softmax(kernel_h q_i)_n v_{i + n - left}``, per head ``h``, over ``kernel_size`` tokens: in an
    encoder as many on each side, in a causal decoder the token and those before it. Tokens that do not exist, or that
    the mask hides, count as zeros; the weights of the others do not grow for that.

    It differs from the paper in that it stands beside self-attention instead of in its place, and shares the
    projections of its values (and has no gated linear unit before them), predicts the kernel from the query's states,
    starts from equal weights, and has a gate per head that starts at zero, so that a fresh patch changes nothing. The
    weights are not dropped in training.

    Attributes:
        kernel_size: how many tokens the kernel covers; odd where queries look both ways.
        first_layers: act in so many layers of each stack only, counted from the first; None, or more than there are,
            means all.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "dynamic_convolution"
    parts = frozenset({"branch"})
    starts_exact = True
    learns = True

    kernel_size: int = 7
    first_layers: int | None = None

    def __post_init__(self) -> None:
        self._check_positive_int("kernel_size")
        if self.first_layers is not None:
            self._check_positive_int("first_layers")

    @property
    def horizon(self) -> int:
        """The size of the kernel, beyond which nothing is seen."""
        return self.kernel_size

    def build(self, geometry: AttentionGeometry) -> DynamicConvolutionScheme:
        """The kernels' parameters for one layer.

        Raises:
            RelPosConfigError: if the kernel has no middle, and the attention looks both ways.
        """
        if not geometry.causal and self.kernel_size % 2 == 0:
            raise self._wrong("kernel_size", "odd where queries look both ways, for as many tokens on each side")
        return DynamicConvolutionScheme(self, geometry)


class DynamicConvolutionScheme(Scheme):
    """Predicts kernels by ``kernel`` ``[heads, kernel_size, head_dim]``; gated by ``gate`` ``[heads]``."""

    def __init__(self, config: DynamicConvolution, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.size = config.kernel_size
        self.causal = geometry.causal
        self.kernel = nn.Parameter(torch.empty(geometry.num_heads, config.kernel_size, geometry.head_dim))
        self.gate = nn.Parameter(torch.empty(geometry.num_heads))
        self.reset_relpos_parameters()

    def reset_relpos_parameters(self) -> None:
        """Equal weights, behind a shut gate (skips what is already loaded from a checkpoint)."""
        init.zeros_(self.kernel)
        init.zeros_(self.gate)

    def beside(self, call: AttentionCall) -> Tensor:
        """The convolution, in the dtype of the values; its weights are computed in float32 at least."""
        query, value, mask = call.query, call.value, call.mask
        mask.check(query.shape, call.key.shape)
        dtype = torch.promote_types(value.dtype, torch.float32)
        kernels = (query @ self.kernel.to(query).transpose(-1, -2)).to(dtype).softmax(-1)
        left = self.size - 1 if self.causal else self.size // 2
        near = self._near(value, mask.query_offset - left, query.shape[2], mask.padding).to(dtype)
        near = near.repeat_interleave(query.shape[1] // near.shape[1], dim=1)
        # What the place of the kernel or its size sees to already need not be looked up pair by pair.
        rules = replace(
            mask,
            padding=None,
            causal=mask.causal and not self.causal,
            window=None if mask.window is None or mask.window >= left else mask.window,
        )
        allowed = rules.allowed_near(-left, self.size, value.device)
        total = torch.zeros((), dtype=dtype, device=value.device)
        for place in range(self.size):
            tokens = near[:, :, place : place + query.shape[2]]
            if allowed is not None:
                tokens = tokens.masked_fill(~allowed[..., place, None], 0.0)
            total = total + kernels[..., place, None] * tokens
        return (self.gate.to(dtype)[:, None, None] * total).to(value.dtype)

    def _near(self, value: Tensor, first: int | Tensor, queries: int, padding: Tensor | None) -> Tensor:
        """The values from position ``first`` on that all kernels together cover, zero where there is no token."""
        at = torch.arange(queries + self.size - 1, device=value.device) + first
        inside = at.clamp(0, value.shape[2] - 1)
        there = (at == inside)[None]
        if padding is not None:
            there = there & padding[:, inside]
        return value.index_select(2, inside).masked_fill(~there[:, None, :, None], 0.0)

    def extra_repr(self) -> str:
        """The size of the kernel."""
        return f"kernel_size={self.size}"
