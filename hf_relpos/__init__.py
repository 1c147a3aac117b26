"""Relative positions for pretrained Hugging Face Transformers.

Importing this package makes patched models known to the Auto classes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_relpos import configuration, peft
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import (
    NothingPatchedError,
    PatchStateError,
    RelPosConfigError,
    RelPosError,
    UnsupportedModelError,
)
from hf_relpos.peft import peft_modules_to_save
from hf_relpos.schemes import ClippedBias, Shaw, T5Bias
from hf_relpos.version import __version__

if TYPE_CHECKING:
    from hf_relpos.patching import PatchReport, is_patched, patch_model, patch_report, unpatch_model
    from hf_relpos.standalone import push_to_hub_standalone, save_standalone
    from hf_relpos.training import (
        AnnealNativeGateCallback,
        RelPosLoggingCallback,
        RelPosTrainerMixin,
        relpos_param_groups,
    )

__all__ = [
    "AnnealNativeGateCallback",
    "ClippedBias",
    "NothingPatchedError",
    "PatchReport",
    "PatchStateError",
    "RelPosConfig",
    "RelPosConfigError",
    "RelPosError",
    "RelPosLoggingCallback",
    "RelPosTrainerMixin",
    "Shaw",
    "T5Bias",
    "UnsupportedModelError",
    "__version__",
    "is_patched",
    "patch_model",
    "patch_report",
    "peft_modules_to_save",
    "push_to_hub_standalone",
    "relpos_param_groups",
    "save_standalone",
    "unpatch_model",
]

configuration.register()
peft.register()

# Names that need Transformers' modelling code, which takes seconds to import, are looked up when first used.
_LAZY = {
    **dict.fromkeys(
        ("PatchReport", "is_patched", "patch_model", "patch_report", "unpatch_model"), "hf_relpos.patching"
    ),
    **dict.fromkeys(
        ("AnnealNativeGateCallback", "RelPosLoggingCallback", "RelPosTrainerMixin", "relpos_param_groups"),
        "hf_relpos.training",
    ),
    **dict.fromkeys(("push_to_hub_standalone", "save_standalone"), "hf_relpos.standalone"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name.startswith(configuration.CLASS_PREFIX):
        module = "hf_relpos.configuration" if name.endswith("Config") else "hf_relpos.models"
        try:
            return getattr(import_module(module), name)
        except AttributeError:
            pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    models = vars(import_module("hf_relpos.models"))
    classes = [name for name in models if name.startswith(configuration.CLASS_PREFIX) and name.isidentifier()]
    return sorted({*globals(), *_LAZY, *classes})
