"""Extras for ``Trainer``: learning rates of their own for what a patch added, logging of it, and a way to let go.

All are optional: a patched model trains with a plain ``Trainer``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from hf_relpos import patching, wiring
from hf_relpos.errors import PatchStateError
from hf_relpos.gates import HeadGate, TokenGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.models import RelPosModelMixin, patched_class
from hf_relpos.positions import GatedTable, NativeGate
from hf_relpos.resuming import check_checkpoint

logger = logging.get_logger(__name__)

# How much faster than the pretrained parameters the added ones learn, unless told otherwise. They start at nothing and
# have a long way to go.
ADDED_RATE = 20

# The mixin always stands before a Trainer; only the type checker is told so.
_Base: Any = Trainer if TYPE_CHECKING else object


# Parameter groups


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
        PatchStateError: if no added parameter is trainable.
        ValueError: for a rate or decay that is negative, not finite, or not a number.
    """
    decayed = [name for name, parameter in model.named_parameters() if parameter.ndim > 1 and "bias" not in name]
    return _groups(model, decayed, lr, weight_decay, relpos_lr, relpos_weight_decay)


def _groups(
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
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"`{name}` is {value!r}, but must be a finite number of at least 0.")
    relpos_lr = ADDED_RATE * lr if relpos_lr is None else relpos_lr
    settings = {
        "pretrained, decayed": {"lr": lr, "weight_decay": weight_decay},
        "pretrained": {"lr": lr, "weight_decay": 0.0},
        "tables": {"lr": relpos_lr, "weight_decay": relpos_weight_decay},
        "gates": {"lr": relpos_lr, "weight_decay": 0.0},
    }
    members: dict[str, list[nn.Parameter]] = {kind: [] for kind in settings}
    added = {id(parameter): owner for _, owner, parameter in wiring.added_parameters(model)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members[_kind(name, added.get(id(parameter)), decayed)].append(parameter)
    if not members["tables"] and not members["gates"]:
        raise PatchStateError(_nothing_to_train(model))
    return [{"params": members[kind], **settings[kind]} for kind in settings if members[kind]]


def _is_number(value: object) -> bool:
    """Numbers from a YAML file may have come as text: ``1e-3`` is one there, for want of a point."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(name: str, owner: nn.Module | None, decayed: Collection[str]) -> str:
    """The group of a parameter, by its name and, if it was added, the module that has it."""
    if owner is not None:
        return "gates" if isinstance(owner, (NativeGate, HeadGate, TokenGate)) else "tables"
    return "pretrained, decayed" if name in decayed else "pretrained"


def _nothing_to_train(model: nn.Module) -> str:
    if not patching.is_patched(model):
        return f"{type(model).__name__} is not patched: it has no added parameters. Call patch_model first."
    return (
        f"All relative tables and gates of {type(model).__name__} are frozen. With PEFT, train and save them with "
        "modules_to_save=peft_modules_to_save(model)."
    )


class RelPosTrainerMixin(_Base):
    """A ``Trainer`` whose optimizer has groups for the added parameters: ``class Mine(RelPosTrainerMixin, Trainer)``.

    Which optimizer, and the settings of the pretrained parameters, come from the ``TrainingArguments`` as always.

    Args:
        *args: as for the Trainer.
        relpos_lr: peak learning rate of the added parameters; None means 20 times ``learning_rate``. The schedule
            scales it like the other.
        relpos_weight_decay: weight decay of the added tables.
        **kwargs: as for the Trainer.

    Raises:
        ValueError: if an optimizer is given as well.
    """

    optimizer_cls_and_kwargs: Any

    def __init__(
        self, *args: Any, relpos_lr: float | None = None, relpos_weight_decay: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.optimizer is not None:
            raise ValueError(
                f"{type(self).__name__} makes the optimizer itself, but was given one with optimizers=. Leave it out, "
                "or make it with relpos_param_groups and give it to a plain Trainer."
            )
        self.relpos_lr = relpos_lr
        self.relpos_weight_decay = relpos_weight_decay

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's optimizer, with our groups.

        Raises:
            PatchStateError: if no added parameter is trainable.
            ValueError: for an optimizer that makes its groups itself.
        """
        if self.optimizer is not None:
            return super().create_optimizer(model)
        trained = self.model if model is None else model
        chosen = self.optimizer_cls_and_kwargs
        optimizer, arguments = chosen or self.get_optimizer_cls_and_kwargs(self.args, trained)
        if not _takes_groups(optimizer) or {"params", "model", "optimizer_dict"} & set(arguments):
            raise ValueError(
                f"optim={self.args.optim!r} makes its parameter groups itself, so {type(self).__name__} cannot give "
                "the added parameters theirs. Choose another optimizer, for example adamw_torch, or a plain Trainer."
            )
        groups = _groups(
            trained,
            self.get_decay_parameter_names(trained),
            self.args.learning_rate,
            self.args.weight_decay,
            self.relpos_lr,
            self.relpos_weight_decay,
        )
        # The Trainer takes groups from the optimizer's arguments where it finds them there.
        self.optimizer_cls_and_kwargs = (optimizer, {**arguments, "params": groups})
        try:
            return super().create_optimizer(model)
        finally:
            self.optimizer_cls_and_kwargs = chosen

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights to resume from.

        Raises:
            PatchStateError: if the checkpoint was made with other relative positions, or with none.
        """
        check_checkpoint(self.model if model is None else model, resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)


def _takes_groups(optimizer: Any) -> bool:
    return isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)


# Logging


def relpos_measures(model: nn.Module) -> dict[str, float]:
    """What the added parameters have come to, as numbers to log.

    Args:
        model: a patched model, wrapped or not. Where FSDP2 shards it, all processes must ask: the values are gathered.

    Returns:
        By ``relpos/<path>``: for tables and token gates the norm of each parameter, for head gates mean, smallest and
        largest, for gates on native positions the value.
    """
    measures = {}
    with torch.no_grad():
        for path, owner, parameter in wiring.added_parameters(model):
            if ".original_module." in path:
                continue
            name, value = _short(path), _whole(parameter).float()
            if isinstance(owner, HeadGate):
                measures[f"relpos/{name}_mean"] = value.mean().item()
                measures[f"relpos/{name}_min"] = value.min().item()
                measures[f"relpos/{name}_max"] = value.max().item()
            elif isinstance(owner, NativeGate):
                measures[f"relpos/{name}"] = value.mean().item()
            else:
                measures[f"relpos/{name}_norm"] = value.norm().item()
    return measures


def _whole(parameter: nn.Parameter) -> Tensor:
    """A parameter's value; of one that FSDP2 shards, a process holds only a part, so the others' are gathered."""
    value = parameter.detach()
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def _short(path: str) -> str:
    """A path without what PEFT and DDP put into it."""
    parts = path.split(".modules_to_save.")
    shortened = ".".join([parts[0], *(part.partition(".")[2] for part in parts[1:])]).rstrip(".")
    return shortened.removeprefix("module.").removeprefix("base_model.model.")


class RelPosLoggingCallback(TrainerCallback):
    """Logs tables and gates, each time the Trainer logs, to whatever ``report_to`` says.

    Added with ``trainer.add_callback(RelPosLoggingCallback(trainer))``. The numbers are those of
    :func:`relpos_measures`, one entry per logging step, in ``trainer.state.log_history`` too.

    Args:
        trainer: the Trainer that logs. A callback has no other way to its reporters: they are told before it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log, where the Trainer is about to."""
        if control.should_log:
            self.trainer.log(relpos_measures(kwargs["model"]))

    on_epoch_end = on_step_end


# Letting go of the native positions


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
        if not (_is_number(start) and _is_number(end) and 0 <= start < end <= 1):
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
        if all(_whole(gate).item() == 0 for _, gate in _native_gates(model)):
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
    if patching.is_patched(model):
        return "only contains one. Merge an adapter into it first (merge_and_unload), or train the inner model."
    return "is not patched. Call patch_model first."


def _native_gates(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, owner, parameter in wiring.added_parameters(model):
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
    config = replace(wiring.check_config(model), native="drop")
    for table in [module for module in model.modules() if isinstance(module, GatedTable)]:
        del table.relpos_gate
        table.weight.grad = None  # an optimizer that still holds it has nothing more to do
        table.__class__ = table.relpos_original  # type: ignore[assignment]
    wiring.attach(model, model.relpos_family, config, patched_class, keep_dropped=True)
    for layer in model.modules():
        if isinstance(layer, RelPosLayer):
            layer.config = config
    for model_config in patching.own_configs(model, type(model.config)):
        model_config.relpos = config
