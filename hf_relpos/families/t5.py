"""T5 and its kin: a learned bias per head and distance bucket, instead of absolute positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_relpos.families.base import Family
from hf_relpos.families.native import ScoreBias

TABLE = "relative_attention_bias"


class BiasOverOffsets:
    """Computes the native bias once per offset instead of once per pair of positions."""

    has_relative_attention_bias: bool
    is_decoder: bool
    relative_attention_num_buckets: int
    relative_attention_max_distance: int

    def compute_bias(self, query_length: int, key_length: int, device: Any = None, **past: Any) -> Tensor:
        """The bias ``[1, heads, 1, 2k + 1]`` over the offsets ``-k .. k``, with ``k`` the largest that matters.

        One query at position ``k`` sees ``2k + 1`` keys at just these offsets, so T5 itself computes it.
        """
        k = self._horizon(query_length, key_length, past.get("past_seen_tokens", 0))
        return super().compute_bias(1, 2 * k + 1, device=device, past_seen_tokens=k)  # type: ignore[misc]

    def _horizon(self, queries: int, keys: int, past: int | Tensor) -> int:
        """The distance from which on the bias is constant; where it never is, the largest one in this call.

        The smaller half of the buckets hold one distance each. A maximal distance that is not beyond them makes T5's
        logarithms run the wrong way: the bias changes on and on, until a bucket is asked for that is not there and T5
        raises an IndexError. That is followed: no distance is looked up that T5 would not look up.
        """
        buckets = self.relative_attention_num_buckets if self.is_decoder else self.relative_attention_num_buckets // 2
        if self.relative_attention_max_distance > buckets // 2:
            return self.relative_attention_max_distance
        past = int(past)
        ahead = 0 if self.is_decoder else keys - past
        return max(past + queries, ahead) - 1


class SharedBiasOverOffsets(BiasOverOffsets):
    """The same where the first layer's bias is handed on to the others.

    Layers with no table of their own that are handed nothing (cross-attention; a dropped table) make a matrix of
    zeros, one per pair of positions. A single zero serves as well.
    """

    def forward(self, hidden_states: Tensor, *args: Any, position_bias: Tensor | None = None, **kwargs: Any) -> Any:
        """Attention, as T5 computes it."""
        if position_bias is None and not self.has_relative_attention_bias:
            position_bias = hidden_states.new_zeros(1, 1, 1, 1)
        return super().forward(hidden_states, *args, position_bias=position_bias, **kwargs)  # type: ignore[misc]


class OwnBiasOverOffsets(BiasOverOffsets):
    """The same where every layer has its own table, and where none has, makes the matrix of zeros itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Attention, as UMT5 computes it, told for the while that it has a table: then it asks for the bias."""
        has_table = self.has_relative_attention_bias
        self.has_relative_attention_bias = True
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.has_relative_attention_bias = has_table

    def compute_bias(self, query_length: int, key_length: int, device: Any = None, **past: Any) -> Tensor:
        """The bias over offsets, or a single zero where there is no table."""
        if TABLE in self._modules:  # type: ignore[attr-defined]
            return super().compute_bias(query_length, key_length, device, **past)
        return torch.zeros(1, 1, 1, 1, device=device)


def _is_cross_attention(path: str, attention: nn.Module) -> bool:
    return path.endswith("EncDecAttention")


def _t5_like(package: str, prefix: str, override: type, adapters_like: str | None = None) -> Family:
    attention = f"{prefix}Attention"
    return Family(
        package=package,
        config=f"{prefix}Config",
        attention=attention,
        num_heads="n_heads",
        head_dim="key_value_proj_dim",
        causal="is_decoder",  # what the native bias goes by; `is_causal` is wrong in UMT5 of Transformers 5.15
        natives=(ScoreBias(owner=attention, table=TABLE, flag="has_relative_attention_bias"),),
        is_cross_attention=_is_cross_attention,
        overrides={attention: override},
        adapters_like=adapters_like,
    )


T5 = _t5_like("t5", "T5", SharedBiasOverOffsets)
MT5 = _t5_like("mt5", "MT5", SharedBiasOverOffsets)
UMT5 = _t5_like("umt5", "UMT5", OwnBiasOverOffsets, adapters_like="mt5")
