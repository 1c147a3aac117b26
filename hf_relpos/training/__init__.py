"""Extras for ``Trainer``: learning rates of their own for what a patch added, logging of it, and a way to let go.

All are optional: a patched model trains with a plain ``Trainer``.
"""

from hf_relpos.training.annealing import AnnealNativeGateCallback, drop_native_positions
from hf_relpos.training.groups import relpos_param_groups
from hf_relpos.training.logging import RelPosLoggingCallback, relpos_measures
from hf_relpos.training.trainer import RelPosTrainerMixin

__all__ = [
    "AnnealNativeGateCallback",
    "RelPosLoggingCallback",
    "RelPosTrainerMixin",
    "drop_native_positions",
    "relpos_measures",
    "relpos_param_groups",
]
