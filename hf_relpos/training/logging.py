"""What tables and gates have come to, as numbers to log."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_relpos.families.tables import NativeGate
from hf_relpos.gates import HeadGate
from hf_relpos.modeling import state
from hf_relpos.training.numbers import whole


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
        for path, owner, parameter in state.added_parameters(model):
            if ".original_module." in path:
                continue
            name, value = _short(path), whole(parameter).float()
            if isinstance(owner, HeadGate):
                measures[f"relpos/{name}_mean"] = value.mean().item()
                measures[f"relpos/{name}_min"] = value.min().item()
                measures[f"relpos/{name}_max"] = value.max().item()
            elif isinstance(owner, NativeGate):
                measures[f"relpos/{name}"] = value.mean().item()
            else:
                measures[f"relpos/{name}_norm"] = value.norm().item()
    return measures


def _short(path: str) -> str:
    """A path without what PEFT and DDP put into it."""
    parts = path.split(".modules_to_save.")
    shortened = ".".join([parts[0], *(part.partition(".")[2] for part in parts[1:])]).rstrip(".")
    return shortened.removeprefix("module.").removeprefix("base_model.model.")


class RelPosLoggingCallback(TrainerCallback):
    """Logs tables and gates, each time the Trainer logs, to whatever ``report_to`` says.

    Added with ``trainer.add_callback(RelPosLoggingCallback(trainer))``. The numbers are those of
    :func:`hf_relpos.training.relpos_measures`, one entry per logging step, in ``trainer.state.log_history`` too.

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
