"""Letting go of the native positions bit by bit, so that a model ends purely relative."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from hf_relpos.errors import PatchStateError
from hf_relpos.families.tables import GatedTable, NativeGate, ungate
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling import state as patch_state
from hf_relpos.modeling import wiring
from hf_relpos.modeling.classes import RelPosModelMixin
from hf_relpos.modeling.held_configs import update_configs
from hf_relpos.modeling.unchanged import unchanged_on_error
from hf_relpos.training.numbers import is_number, whole

logger = logging.get_logger(__name__)


def _linear(progress: float) -> float:
    return 1 - progress


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


SCHEDULES: dict[str, Callable[[float], float]] = {"linear": _linear, "cosine": _cosine}


class AnnealNativeGateCallback(TrainerCallback, ExportableState):
    """Shuts the gate on the native positions bit by bit, and drops them at the end: what is left is purely relative.

    For models patched with ``native="gate"``, given to the Trainer as ``callbacks=[AnnealNativeGateCallback()]``. The
    gate is no longer learned, but follows the schedule, and is exactly 0 from ``end`` on. When training is over, the
    native table is taken out, as if the model had been patched with ``native="drop"``; for absolute positions this also
    lifts the limit on the length. Checkpoints written before that have ``native="gate"``, and training resumes from
    them.

    If training stops before ``end``, nothing is dropped, since the model still uses its native positions. The gate
    stays out of learning (``requires_grad=False``), for training to be resumed.

    Many processes may train together, with DDP or FSDP2. After the end they need a new Trainer to train on.

    Args:
        start: part of the training steps after which the gate begins to shut.
        end: part of the training steps after which it is shut.
        schedule: ``"linear"`` or ``"cosine"``.

    Raises:
        ValueError: for a wrong value; names the argument, the value and what is allowed.
    """

    def __init__(self, start: float = 0.0, end: float = 0.8, schedule: str = "linear") -> None:
        if not (is_number(start) and is_number(end) and 0 <= start < end <= 1):
            raise ValueError(
                f"AnnealNativeGateCallback: `start` is {start!r} and `end` is {end!r}, but they must be parts of the "
                "training, 0 <= start < end <= 1."
            )
        if schedule not in SCHEDULES:
            raise ValueError(
                f"AnnealNativeGateCallback: `schedule` is {schedule!r}, but must be one of "
                f"{', '.join(map(repr, SCHEDULES))}."
            )
        self.start = start
        self.end = end
        self.schedule = schedule
        self.opened: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the arguments, and how far each gate was open when training began."""
        return {
            "args": {"start": self.start, "end": self.end, "schedule": self.schedule},
            "attributes": {"opened": dict(self.opened)},
        }

    def factor(self, step: int, max_steps: int) -> float:
        """How far the gate is open after a number of steps, as a part of what it was."""
        progress = (step / max(max_steps, 1) - self.start) / (self.end - self.start)
        return SCHEDULES[self.schedule](progress) if 0 < progress < 1 else float(progress <= 0)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the gates out of learning, before an optimizer or a wrapper knows them.

        Raises:
            PatchStateError: if the model has no native gate.
            ValueError: if the Trainer would put an earlier model in place of the last one.
        """
        model = kwargs["model"]
        if not isinstance(model, RelPosModelMixin) or model.config.relpos["native"] != "gate":
            raise PatchStateError(
                f'AnnealNativeGateCallback needs a model patched with native="gate", but {type(model).__name__} '
                + _why_not(model)
            )
        if args.load_best_model_at_end:
            raise ValueError(
                "AnnealNativeGateCallback cannot go with load_best_model_at_end=True: the best model may be one that "
                "still uses its native positions, and dropping them would change it. Turn it off."
            )
        for name, gate in _native_gates(model):
            gate.requires_grad_(False)
            self.opened[name] = float(gate)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on where a checkpoint left off, or begin.

        Raises:
            PatchStateError: if the model cannot be turned into another one at the end: it is inside a wrapper, or
                several processes train again a model that has been turned.
            ValueError: if the callback came too late to take the gates out of learning.
        """
        model = kwargs["model"]
        if not isinstance(model, RelPosModelMixin):
            raise PatchStateError(
                f"AnnealNativeGateCallback cannot take the native positions out of a {type(model).__name__}, the "
                "wrapper that the Trainer has put around the model. Train with DDP or FSDP2, which leave the model "
                'itself to callbacks (with fsdp=True: fsdp_config={"version": 2}).'
            )
        if args.world_size > 1 and model.config.relpos["native"] == "drop":
            raise PatchStateError(
                f"AnnealNativeGateCallback has dropped the native positions of {type(model).__name__} at the end of an "
                f"earlier training, but what connects the {args.world_size} processes still counts on them. To train "
                "on, make a new Trainer, without this callback."
            )
        if any(gate.requires_grad for _, gate in _native_gates(model)):
            raise ValueError(
                "AnnealNativeGateCallback came too late: the optimizer learns the native gate already. Give it to the "
                "Trainer with callbacks=[...] and the model with model=, not with add_callback or model_init."
            )
        stored = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(stored, dict):
            self.opened = dict(stored["attributes"]["opened"])
        self._set_gates(model, state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the gates to where they belong now: for the next step, and for a checkpoint in between."""
        self._set_gates(kwargs["model"], state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop the native positions, if they no longer act."""
        model = kwargs["model"]
        if all(whole(gate).item() == 0 for _, gate in _native_gates(model)):
            drop_native_positions(model)
        else:
            logger.warning(
                f"Training stopped at step {state.global_step} of {state.max_steps}, before the gate on the native "
                'positions was shut. They were not dropped: the model is still one with native="gate", whose gate does '
                "not learn (requires_grad=False)."
            )

    def _set_gates(self, model: nn.Module, state: TrainerState) -> None:
        factor = self.factor(state.global_step, state.max_steps)
        with torch.no_grad():
            for name, gate in _native_gates(model):
                gate.fill_(self.opened[name] * factor)


def _why_not(model: nn.Module) -> str:
    if isinstance(model, RelPosModelMixin):
        return f"has native={model.config.relpos['native']!r}."
    if patch_state.is_patched(model):
        return "only contains one. Merge an adapter into it first (merge_and_unload), or train the inner model."
    return "is not patched. Call patch_model first."


def _native_gates(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, owner, parameter in patch_state.added_parameters(model):
        if isinstance(owner, NativeGate):
            yield name, parameter


def drop_native_positions(model: RelPosModelMixin) -> None:
    """Turn a patched model into one with ``native="drop"``, in place, whatever its native positions were worth.

    The model computes the same if they had been shut off, by a gate at zero. ``unpatch_model`` puts the table back.

    Raises:
        PatchStateError: if the model is not patched.
    """
    if not isinstance(model, RelPosModelMixin):
        raise PatchStateError(f"{type(model).__name__} is not patched. Call patch_model first.")
    config = replace(patch_state.check_config(model), native="drop")
    tables = [module for module in model.modules() if isinstance(module, GatedTable)]
    with unchanged_on_error(model.modules()):
        ungate(model)
        wiring.attach(model, model.relpos_family, config, model.relpos_class_of, keep_dropped=True)
        for layer in model.modules():
            if isinstance(layer, RelPosLayer):
                layer.config = config
        update_configs(model, config)
        for table in tables:
            table.weight.grad = None  # an optimizer that still holds it has nothing more to do
