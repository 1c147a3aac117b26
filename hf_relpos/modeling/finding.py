"""Where inside a model the models are that a user should have given instead, as expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_relpos.modeling.state import is_patched_model


def patched_inside(model: Any) -> str:
    """Where inside a model the patched ones are, or nothing."""
    return outermost(model, is_patched_model)


def is_model_class(candidate: Any) -> bool:
    """Whether a class is a model of Transformers that can run: the bases that models share have no ``forward``."""
    return issubclass(candidate, PreTrainedModel) and candidate.forward is not nn.Module.forward


def outermost(model: Any, wanted: Callable[[nn.Module], bool]) -> str:
    """A sentence that names the outermost wanted modules inside a model, or nothing."""
    children = model.named_modules() if isinstance(model, nn.Module) else ()
    inner = [path for path, module in children if path and wanted(module)]
    outermost = [path for path in inner if not any(path.startswith(other + ".") for other in inner)]
    if not outermost:
        return ""
    return "It contains models to call this on, one by one: " + ", ".join(map(expression, outermost)) + "."


def expression(path: str) -> str:
    """A module's path as a user writes it: ``model[0].auto_model``."""
    return "model" + "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in path.split(".") if name)
