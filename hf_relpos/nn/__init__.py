"""Relative positions as plain PyTorch modules, for people who build their own model.

The schemes and engines are those of the patched models; nothing here needs a Transformers model.
"""

from hf_relpos.nn.attention import RelativeMultiheadAttention
from hf_relpos.nn.bias import RelativePositionBias
from hf_relpos.nn.sinusoidal import SinusoidalPositionalEncoding

__all__ = ["RelativeMultiheadAttention", "RelativePositionBias", "SinusoidalPositionalEncoding"]
