"""The two stages of a conversion, each a training with the Trainer, that can be interrupted and resumed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, TrainingArguments

from hf_relpos.conversion.batches import Steps
from hf_relpos.conversion.callbacks import ConversionProgress, StopAtFidelity
from hf_relpos.conversion.errors import ConversionError
from hf_relpos.conversion.examination import Examination
from hf_relpos.conversion.matching import Matching
from hf_relpos.conversion.progress import is_finished, last_checkpoint
from hf_relpos.conversion.reading import Pool
from hf_relpos.conversion.trainer import ConversionTrainer
from hf_relpos.modeling import state

_WARM_UP = 0.05  # of the steps, at least this many:
_WARM_UP_STEPS = 10


LOOK_EVERY = 50  # steps, whether the target is reached

# What users may change in `training_arguments`.
_DEFAULTS = {
    "adam_beta2": 0.98,
    "logging_steps": 10,
    "save_strategy": "no",
    "save_total_limit": 1,
    "report_to": "none",
    "dataloader_pin_memory": False,
}


@dataclass(frozen=True)
class Training:
    """What is the same for both stages; see :func:`hf_relpos.convert`."""

    output_dir: str | Path | None
    resume: bool
    seed: int
    arguments: Mapping[str, Any]
    target: float | None
    progress: bool


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: ``"tables"`` or ``"all"``.
        steps: how many.
        learning_rate: peak rate of the pretrained parameters; None leaves them as they are.
        added_learning_rate: peak rate of tables and gates.
        matching: the loss.
    """

    name: str
    steps: int
    learning_rate: float | None
    added_learning_rate: float
    matching: Matching


def trainable(student: PreTrainedModel, stage: Stage) -> None:
    """Freeze what a stage does not train: all but the added parameters, or embeddings and heads.

    Embeddings of words seldom seen would learn little; and a head, which is often tied to them, reads the very states
    that are matched.
    """
    added = {id(parameter) for _, _, parameter in state.added_parameters(student)}
    body = {id(parameter) for parameter in student.base_model.parameters()}
    kept = [module for module in student.modules() if isinstance(module, nn.Embedding)]
    kept += [head for head in [student.get_output_embeddings()] if head is not None]
    body -= {id(parameter) for module in kept for parameter in module.parameters(recurse=False)}
    for parameter in student.parameters():
        learns = id(parameter) in added or (stage.learning_rate is not None and id(parameter) in body)
        parameter.requires_grad_(learns)


def device_of(training: Training) -> torch.device:
    """Where the Trainer will train.

    Raises:
        ConversionError: if it would spread one process over several devices.
    """
    args = _arguments(Stage("", 1, None, 0.0, Matching()), training, Path())
    if args.n_gpu > 1:
        raise ConversionError(
            f"convert sees {args.n_gpu} devices in one process. Start one process for each (accelerate launch, "
            "torchrun), or let this one see one device (CUDA_VISIBLE_DEVICES=0)."
        )
    return args.device


def run_stage(
    stage: Stage,
    student: PreTrainedModel,
    teacher: nn.Module,
    pool: Pool,
    training: Training,
    data: Callable[[int], Steps],
    exam: Examination,
) -> None:
    """Train the student in place.

    Args:
        stage: which.
        student: the model in conversion.
        teacher: the original.
        pool: makes embeddings.
        training: how.
        data: makes the batches for a number of processes.
        exam: tells whether the target is reached.
    """
    trainable(student, stage)
    if not any(parameter.requires_grad for parameter in student.parameters()):
        return
    with tempfile.TemporaryDirectory(prefix="hf_relpos_convert_") as scratch:
        folder = Path(scratch if training.output_dir is None else training.output_dir) / stage.name
        args = _arguments(stage, training, folder)
        trainer = ConversionTrainer(
            student,
            args,
            teacher=teacher,
            pool=pool,
            matching=stage.matching,
            train_dataset=data(args.world_size),
            relpos_lr=stage.added_learning_rate,
        )
        for shown in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(shown)
        if training.progress:
            trainer.add_callback(ConversionProgress(stage.name, lambda: trainer.agreement))
        if training.target is not None:
            trainer.add_callback(StopAtFidelity(training.target, partial(exam.agreement, student), LOOK_EVERY))
        last = last_checkpoint(folder) if training.resume else None
        if last is not None and is_finished(last):
            trainer.load_weights(str(last))
        else:
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
    student.eval()


def _arguments(stage: Stage, training: Training, folder: Path) -> TrainingArguments:
    ours = {
        "output_dir": str(folder),
        "max_steps": stage.steps,
        "per_device_train_batch_size": 1,  # a batch of the data, which is made of many sequences
        "gradient_accumulation_steps": 1,
        "learning_rate": stage.added_learning_rate if stage.learning_rate is None else stage.learning_rate,
        "warmup_steps": min(max(_WARM_UP_STEPS, round(_WARM_UP * stage.steps)), stage.steps),
        "seed": training.seed,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "disable_tqdm": True,  # its own bar makes room for the one that shows the agreement
    }
    clash = sorted(ours.keys() & training.arguments.keys())
    if clash:
        raise ConversionError(
            f"`training_arguments` has {', '.join(map(repr, clash))}, which convert sets itself, by its own "
            "arguments. Leave it out."
        )
    return TrainingArguments(**{**ours, **_DEFAULTS, **training.arguments})
