"""Relative positions for pretrained Hugging Face Transformers.

Importing this package makes patched models known to the Auto classes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_relpos import earlier
from hf_relpos.compat import peft as _peft
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import (
    FamilyError,
    NothingPatchedError,
    PatchStateError,
    RelPosConfigError,
    RelPosError,
    TextsError,
    UnknownFieldError,
    UnsupportedModelError,
)
from hf_relpos.families import FAMILIES
from hf_relpos.modeling import configs
from hf_relpos.names import CLASS_PREFIX
from hf_relpos.schemes import (
    ALiBi,
    ClippedBias,
    DynamicConvolution,
    RelativeKeyQuery,
    Rotary,
    Shaw,
    T5Bias,
    register_scheme,
)
from hf_relpos.version import __version__

if TYPE_CHECKING:
    from hf_relpos.advice import Recommendation, recommend
    from hf_relpos.checkpoints.adapters import peft_modules_to_save
    from hf_relpos.checkpoints.standalone import push_to_hub_standalone, save_standalone
    from hf_relpos.comparing import Comparison, ComparisonError, compare, sweep
    from hf_relpos.conversion import ConversionError, FidelityReport, convert
    from hf_relpos.importers import load_relative_key
    from hf_relpos.inspection import Inspection, inspect_model
    from hf_relpos.modeling.registration import register_family
    from hf_relpos.modeling.report import PatchReport, patch_report
    from hf_relpos.patching import is_patched, patch_model, unpatch_model
    from hf_relpos.training import (
        AnnealNativeGateCallback,
        RelPosLoggingCallback,
        RelPosTrainerMixin,
        relpos_param_groups,
    )

__all__ = [
    "ALiBi",
    "AnnealNativeGateCallback",
    "ClippedBias",
    "Comparison",
    "ComparisonError",
    "ConversionError",
    "DynamicConvolution",
    "FamilyError",
    "FidelityReport",
    "Inspection",
    "NothingPatchedError",
    "PatchReport",
    "PatchStateError",
    "Recommendation",
    "RelPosConfig",
    "RelPosConfigError",
    "RelPosError",
    "RelPosLoggingCallback",
    "RelPosTrainerMixin",
    "RelativeKeyQuery",
    "Rotary",
    "Shaw",
    "T5Bias",
    "TextsError",
    "UnknownFieldError",
    "UnsupportedModelError",
    "__version__",
    "compare",
    "convert",
    "inspect_model",
    "is_patched",
    "load_relative_key",
    "patch_model",
    "patch_report",
    "peft_modules_to_save",
    "push_to_hub_standalone",
    "recommend",
    "register_family",
    "register_scheme",
    "relpos_param_groups",
    "save_standalone",
    "sweep",
    "unpatch_model",
]

# Names that need Transformers' modelling code, which takes seconds to import, are looked up when first used.
_LAZY = {
    **dict.fromkeys(("is_patched", "patch_model", "unpatch_model"), "hf_relpos.patching"),
    **dict.fromkeys(("PatchReport", "patch_report"), "hf_relpos.modeling.report"),
    **dict.fromkeys(
        ("AnnealNativeGateCallback", "RelPosLoggingCallback", "RelPosTrainerMixin", "relpos_param_groups"),
        "hf_relpos.training",
    ),
    **dict.fromkeys(("push_to_hub_standalone", "save_standalone"), "hf_relpos.checkpoints.standalone"),
    **dict.fromkeys(("ConversionError", "FidelityReport", "convert"), "hf_relpos.conversion"),
    **dict.fromkeys(("Comparison", "ComparisonError", "compare", "sweep"), "hf_relpos.comparing"),
    **dict.fromkeys(("Recommendation", "recommend"), "hf_relpos.advice"),
    **dict.fromkeys(("Inspection", "inspect_model"), "hf_relpos.inspection"),
    "register_family": "hf_relpos.modeling.registration",
    "load_relative_key": "hf_relpos.importers",
    "peft_modules_to_save": "hf_relpos.checkpoints.adapters",
}


def _prepare_models(family: Any) -> None:
    from hf_relpos import models

    models.register(family)


def _check_adapter(*args: Any) -> None:
    from hf_relpos.checkpoints.adapters import check_adapter

    check_adapter(*args)


def _check_mixed_batch(model: Any) -> None:
    from hf_relpos.checkpoints.adapters import check_mixed_batch

    check_mixed_batch(model)


def _adapter_types() -> dict[str, str]:
    return {family.package: family.adapters_like or family.package for family in FAMILIES.values()}


earlier.keep_paths()
configs.register()
configs.before_models(_prepare_models)
_peft.register(_adapter_types, _check_adapter, _check_mixed_batch)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "nn":
        return import_module("hf_relpos.nn")
    if name.startswith(CLASS_PREFIX):
        return getattr(configs if hasattr(configs, name) else import_module("hf_relpos.models"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is for users, which is what an editor completes; not the rooms that it comes from."""
    models = dir(import_module("hf_relpos.models"))
    classes = [name for name in models if name.startswith(CLASS_PREFIX) and name.isidentifier()]
    configs_made = [configs.config_name_of(family) for family in FAMILIES.values()]
    of_python = [name for name in globals() if name.startswith("__")]
    return sorted({*of_python, *__all__, "nn", *classes, *configs_made})
