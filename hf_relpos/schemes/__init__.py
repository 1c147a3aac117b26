"""The schemes: one file each with its config, its parameters and what it makes of them. None of them knows an engine.

What a scheme of another package is written with is here too, see ``docs/extending.md``.
"""

from hf_relpos.calls import AttentionCall
from hf_relpos.schemes.alibi import ALiBi
from hf_relpos.schemes.base import AttentionGeometry, LearnedTable, LearnedTables, Scheme, SchemeConfig
from hf_relpos.schemes.clipped import ClippedBias
from hf_relpos.schemes.dynamic_convolution import DynamicConvolution
from hf_relpos.schemes.registry import SCHEMES, register_scheme
from hf_relpos.schemes.relative_key_query import RelativeKeyQuery
from hf_relpos.schemes.rotary import Rotary
from hf_relpos.schemes.shaw import Shaw
from hf_relpos.schemes.t5 import T5Bias
from hf_relpos.terms import RelativeTerms

for _scheme in (Shaw, T5Bias, ClippedBias, ALiBi, RelativeKeyQuery, Rotary, DynamicConvolution):
    register_scheme(_scheme)

__all__ = [
    "SCHEMES",
    "ALiBi",
    "AttentionCall",
    "AttentionGeometry",
    "ClippedBias",
    "DynamicConvolution",
    "LearnedTable",
    "LearnedTables",
    "RelativeKeyQuery",
    "RelativeTerms",
    "Rotary",
    "Scheme",
    "SchemeConfig",
    "Shaw",
    "T5Bias",
    "register_scheme",
]
