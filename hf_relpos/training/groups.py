"""Parameter groups: what a patch added learns at a rate of its own, and gates are never decayed."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from torch import nn

from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state
from hf_relpos.training.numbers import is_number

# How much faster than the pretrained parameters the added ones learn, unless told otherwise. They start at nothing and
# have a long way to go.
ADDED_RATE = 20


def relpos_param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    relpos_lr: float | None = None,
    relpos_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Parameter groups for any PyTorch optimizer: what a patch added learns faster, and gates are never decayed.

    Decay pulls a table to zero, that is, to the pretrained model; it would pull a gate to zero too, that is, shut.

    Args:
        model: a patched model, wrapped (PEFT, DDP) or not. Frozen parameters are left out.
        lr: learning rate of the pretrained parameters.
        weight_decay: their weight decay; biases and norms have none, as in ``Trainer``.
        relpos_lr: learning rate of the added parameters; None means 20 times ``lr``.
        relpos_weight_decay: weight decay of the added tables.

    Returns:
        Up to four groups: pretrained with and without decay, tables, gates. Every trainable parameter is in one.

    Raises:
        PatchStateError: if the model is not patched, or all that the patch added is frozen.
        ValueError: for a rate or decay that is negative, not finite, or not a number.
    """
    decayed = [name for name, parameter in model.named_parameters() if parameter.ndim > 1 and "bias" not in name]
    return groups_of(model, decayed, lr, weight_decay, relpos_lr, relpos_weight_decay)


def groups_of(
    model: nn.Module,
    decayed: Collection[str],
    lr: float,
    weight_decay: float,
    relpos_lr: float | None,
    relpos_weight_decay: float,
) -> list[dict[str, Any]]:
    """The groups, with the names of the pretrained parameters that are decayed."""
    for name, value in {
        "lr": lr,
        "weight_decay": weight_decay,
        "relpos_lr": lr if relpos_lr is None else relpos_lr,
        "relpos_weight_decay": relpos_weight_decay,
    }.items():
        if not is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"`{name}` is {value!r}, but must be a finite number of at least 0.")
    relpos_lr = ADDED_RATE * lr if relpos_lr is None else relpos_lr
    settings = {
        "pretrained, decayed": {"lr": lr, "weight_decay": weight_decay},
        "pretrained": {"lr": lr, "weight_decay": 0.0},
        "tables": {"lr": relpos_lr, "weight_decay": relpos_weight_decay},
        "gates": {"lr": relpos_lr, "weight_decay": 0.0},
    }
    members: dict[str, list[nn.Parameter]] = {kind: [] for kind in settings}
    added = {id(parameter) for _, _, parameter in state.added_parameters(model)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members[_kind(name, id(parameter) in added, decayed)].append(parameter)
    if not members["tables"] and not members["gates"] and (added or not state.is_patched(model)):
        raise PatchStateError(_nothing_to_train(model))
    return [{"params": members[kind], **settings[kind]} for kind in settings if members[kind]]


def _kind(name: str, added: bool, decayed: Collection[str]) -> str:
    """The group of a parameter. What a patch added is a gate if its name says so: a scheme's own gate is one too."""
    if added:
        return "gates" if "gate" in name.rpartition("relpos")[2] else "tables"
    return "pretrained, decayed" if name in decayed else "pretrained"


def _nothing_to_train(model: nn.Module) -> str:
    if not state.is_patched(model):
        return f"{type(model).__name__} is not patched: it has no added parameters. Call patch_model first."
    return (
        f"All relative tables and gates of {type(model).__name__} are frozen. With PEFT, train and save them with "
        "modules_to_save=peft_modules_to_save(model)."
    )
