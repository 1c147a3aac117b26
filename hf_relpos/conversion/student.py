"""The copy of a model that is converted: the same weights, with other positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.modeling import state
from hf_relpos.patching import patch_model, unpatch_model

# Looks at a model whose attention can be watched (its layers have a `relpos`) and is otherwise the original.
Watch = Callable[[PreTrainedModel], Any]


def make_student(
    model: PreTrainedModel, config: RelPosConfig, watch: Watch, device: torch.device
) -> tuple[PreTrainedModel, Any]:
    """A copy of a model with other positions, in float32, and what was seen of the original on the way.

    Args:
        model: left as it is. One that is patched already keeps nothing of its relative positions in the copy.
        config: the choices, with ``native="drop"``.
        device: where the copy is to be.
        watch: called with the original, or with the copy while it still computes what the original does.

    Returns:
        The copy, which cannot be unpatched: what it learns goes with its new positions; and what ``watch`` returned.
    """
    if state.is_patched_model(model):
        return _with_other_patch(model, config).to(device), watch(model)
    student = copy.deepcopy(model).to(device).float().eval()
    patch_model(student, RelPosConfig("clipped", native="keep", gate="none", layers=[0]))
    seen = watch(student)
    unpatch_model(student)
    patch_model(student, config)
    for _, native, owner in student.relpos_family.native_tables(student):
        native.forget(owner)
    return student, seen


def _with_other_patch(model: PreTrainedModel, config: RelPosConfig) -> PreTrainedModel:
    """A model of the same class from its config, with all the weights but those of the patch."""
    choices = copy.deepcopy(model.config)
    choices.relpos = config
    student: Any = type(model)(choices).float().eval()
    added = {name for name, _, _ in state.added_parameters(model)}
    weights = {name: value for name, value in model.state_dict().items() if name not in added}
    with torch.no_grad():
        for name, mine in student.state_dict().items():
            if name in weights:
                mine.copy_(weights[name])
    return student
