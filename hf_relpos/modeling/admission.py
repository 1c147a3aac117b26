"""Which models can be patched and unpatched as they are; the others are refused, with what to do first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_relpos.compat.accelerate import adds_only_precision
from hf_relpos.compat.pytorch import is_compiled
from hf_relpos.errors import PatchStateError, UnsupportedModelError
from hf_relpos.families import Family, family_of, supported_in_words
from hf_relpos.modeling.finding import expression, is_model_class, outermost
from hf_relpos.modeling.state import is_patched, is_patched_model
from hf_relpos.modeling.wiring import has_lost_positions


def patchable(model: Any, caller: str = "patch_model", verb: str = "Patch") -> Family:
    """The family of a model that can be patched as it is; who asks, and what for, is said where it cannot."""
    wrapper = _wrapper(model)
    if wrapper is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a model already wrapped by {wrapper}. {verb} the model first, then wrap it."
        )
    if isinstance(model, (str, os.PathLike)):
        raise UnsupportedModelError(
            f"{caller} was given {str(model)!r} ({type(model).__name__}), but takes a model itself. Load it first, for "
            f"one AutoModel.from_pretrained({str(model)!r}). {supported_in_words()}"
        )
    if isinstance(model, type):
        raise UnsupportedModelError(
            f"{caller} was given the class {model.__name__}, but takes a model of it, for one "
            f"{model.__name__}.from_pretrained(...). {supported_in_words()}"
        )
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"{caller} takes a model of Transformers, but was given {type(model).__name__}.{_hint(model)} "
            f"{supported_in_words()}"
        )
    if is_patched(model):
        what = type(model).__name__ if is_patched_model(model) else f"A model inside {type(model).__name__}"
        if is_patched_model(model) and has_lost_positions(model, model.relpos_family):
            raise PatchStateError(
                f"{what} is already patched, and cannot be unpatched: the positions it was pretrained with are gone. "
                "To give it other relative positions, patch the original checkpoint, or teach it them with "
                "hf_relpos.convert (hf-relpos convert)."
            )
        raise PatchStateError(f"{what} is already patched. To change its relative positions, call unpatch_model first.")
    family = supported_family(type(model))
    if family is None:
        raise UnsupportedModelError(f"{type(model).__name__} is not supported.{_hint(model)} {supported_in_words()}")
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has parameters that are not in memory (offloaded, or on the meta device). Patch "
            "it before dispatching it, or load it with its RelPos class: from_pretrained(..., relpos=...)."
        )
    if type(model.config) is not family.config_class:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a {type(model.config).__name__} for its config, but must have a "
            f"{family.config_class.__name__} itself: a patched model is saved with a config class of its own."
        )
    return family


def prepared_modules(
    model: PreTrainedModel, verb: str, patched_class: Callable[[type], type | None]
) -> list[nn.Module]:
    """The modules that change their class, and that accelerate has given a `forward` of their own.

    Raises:
        UnsupportedModelError: if another tool has: such a `forward` would keep calling the one of the old class.
    """
    prepared = []
    for path, module in model.named_modules():
        changes = patched_class(type(module)) is not None or hasattr(type(module), "relpos_original")
        if not changes or "forward" not in vars(module):
            continue
        if not adds_only_precision(module):
            raise UnsupportedModelError(
                f"{type(model).__name__} has its forward replaced at {path or 'the model itself'!r} (by a device map, "
                f"offloading, or a tool like them), and it would go on calling that of the old class. {verb} the model "
                "first. Or save it with save_pretrained, load it again, and use that one; or take the replacement off "
                f"(`del {expression(path)}.forward`, if nothing else is to be undone)."
            )
        prepared.append(module)
    return prepared


def supported_family(model_class: type) -> Family | None:
    """The family that a class is a model of, with any head; None if its models cannot be patched."""
    return family_of(model_class) if is_model_class(model_class) else None


def _wrapper(model: Any) -> str | None:
    """What a model is wrapped by, in words, or None."""
    module = type(model).__module__
    if module.startswith("peft."):
        return "PEFT"
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "data parallelism"
    if module.startswith("torch.distributed."):
        return type(model).__name__
    if is_compiled(model):
        return "torch.compile"
    return None


def _hint(model: Any) -> str:
    """Where inside an unsupported model to look instead, or nothing."""
    found = outermost(model, lambda module: supported_family(type(module)) is not None)
    return f" {found}" if found else ""
