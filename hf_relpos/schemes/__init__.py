"""The schemes: one file each with its config, its parameters and its table. None of them knows an engine."""

from hf_relpos.schemes.base import AttentionGeometry, Scheme, SchemeConfig
from hf_relpos.schemes.clipped import ClippedBias
from hf_relpos.schemes.shaw import Shaw
from hf_relpos.schemes.t5 import T5Bias

SCHEMES: dict[str, type[SchemeConfig]] = {scheme.name: scheme for scheme in (Shaw, T5Bias, ClippedBias)}

__all__ = ["SCHEMES", "AttentionGeometry", "ClippedBias", "Scheme", "SchemeConfig", "Shaw", "T5Bias"]
