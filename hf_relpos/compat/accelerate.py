"""accelerate's mixed precision: the `forward` it puts on a model, told from one that another tool has put there."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.utils import logging

logger = logging.get_logger(__name__)


def adds_only_precision(module: nn.Module) -> bool:
    """Whether a module's own `forward` is its class's, but for the mixed precision that accelerate puts around it.

    `accelerator.prepare` does so, the Trainer calls it (``bf16=True``), and neither takes it off after training.
    """
    from accelerate.utils.operations import ConvertOutputsToFp32

    forward = vars(module)["forward"]
    marked = not vars(module).keys().isdisjoint(("_original_forward", "_is_accelerate_prepared"))
    if not marked or getattr(forward, "__self__", None) is not module:
        return False
    function = forward.__func__
    while isinstance(getattr(function, "__wrapped__", None), ConvertOutputsToFp32):
        autocast = function.__wrapped__.model_forward
        function = getattr(autocast, "__wrapped__", None)
    # `unwrap_model(keep_fp32_wrapper=False)` leaves what is inside the decorators of the class's function too.
    own: Any = type(module).forward
    while own is not function and hasattr(own, "__wrapped__"):
        own = own.__wrapped__
    return own is function


def undo_preparing(modules: list[nn.Module]) -> None:
    """Take accelerate's mixed precision off, so that the next `accelerator.prepare` puts it on again."""
    for module in modules:
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            vars(module).pop(name, None)
    if modules:
        logger.warning_once(
            "accelerate (which the Trainer uses) had put mixed precision around the model's forward, that of the class "
            "the model had before. It was taken off. Prepare the model again to train on; a new Trainer does so."
        )
