"""The relative-position options that the examples share, and how they reach the model and the Trainer."""

import json
import logging
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from arguments import FINITE
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf_relpos import RelPosConfig, RelPosTrainerMixin, is_patched, patch_model
from hf_relpos.cli.errors import CommandError
from hf_relpos.config import GATES, NATIVE
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.schemes import SCHEMES
from hf_relpos.training.groups import ADDED_RATE

logger = logging.getLogger(__name__)

# What can be chosen, as the package has it registered when it is asked for; and "none", for the plain model.
CHOICES = {
    "schemes": ChainMap({"none": None}, SCHEMES),
    "native": NATIVE,
    "relpos_gate": GATES,
    "engine": ENGINE_NAMES,
}


@dataclass
class RelPosArguments:
    """How the model gets relative positions. Leave all of it out for a checkpoint that is patched already."""

    schemes: list[str] | None = field(
        default=None,
        metadata={
            "choices": CHOICES["schemes"],
            "help": "One or several schemes; they add up. 'none' trains the plain model. Default: shaw.",
        },
    )
    max_distance: int | None = field(
        default=None, metadata={"help": "Distance of every scheme named. Default: each scheme's own."}
    )
    native: str | None = field(
        default=None,
        metadata={
            "choices": CHOICES["native"],
            "help": "What becomes of the positions the checkpoint was pretrained with: kept, kept times a "
            "learned scalar, or dropped (then inputs may be longer than in pretraining). Default: gate.",
        },
    )
    relpos_gate: str | None = field(
        default=None,
        metadata={
            "choices": CHOICES["relpos_gate"],
            "help": "Learned strength of the relative terms: none, one per layer and head, or computed for "
            "every token and head. Default: head.",
        },
    )
    engine: str | None = field(
        default=None,
        metadata={
            "choices": CHOICES["engine"],
            "help": "How attention is computed. Default: auto, the fastest exact one.",
        },
    )

    def __post_init__(self):
        if isinstance(self.schemes, str):  # as a config file may say it
            self.schemes = [self.schemes]
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            for given in value if isinstance(value, list) else [value]:
                if given is not None and given not in allowed:
                    raise CommandError(f"--{name} {given} is not known: choose from {', '.join(allowed)}.")
        if self.schemes and "none" in self.schemes and len(self.given()) + len(self.schemes) > 2:
            raise CommandError(
                f"--schemes none trains the plain model, but these were given with it: {self}. Leave out "
                "either 'none' or the other schemes and options."
            )

    def given(self) -> dict:
        """The options that the user set."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def __str__(self) -> str:
        values = {k: v if isinstance(v, list) else [v] for k, v in self.given().items()}
        return " ".join(f"--{name} {' '.join(map(str, value))}" for name, value in values.items())

    def to_config(self) -> RelPosConfig:
        distance = {} if self.max_distance is None else {"max_distance": self.max_distance}
        choices = {"native": self.native, "gate": self.relpos_gate, "engine": self.engine}
        return RelPosConfig(
            schemes=[{"type": name, **distance} for name in self.schemes or ["shaw"]],
            **{name: value for name, value in choices.items() if value is not None},
        )


@dataclass
class RelPosTrainingArguments:
    """How fast relative positions are learned."""

    relpos_lr: float | None = field(
        default=None,
        metadata={"help": f"Peak learning rate of tables and gates. Default: {ADDED_RATE} times --learning_rate."},
    )

    def __post_init__(self):
        FINITE.check(self, "relpos_lr")

    def rate(self, args: TrainingArguments) -> float:
        """The learning rate that tables and gates get."""
        return ADDED_RATE * args.learning_rate if self.relpos_lr is None else self.relpos_lr


def apply_relpos(model: PreTrainedModel, args: RelPosArguments) -> PreTrainedModel:
    """Patch `model` as `args` say; a model that is patched already is left as it is.

    Raises:
        CommandError: the model is patched already and options were given, which could have no effect.
    """
    if is_patched(model):
        if args.given():
            raise CommandError(
                f"The model has relative positions already ({model.config.relpos}), so '{args}' would have "
                "no effect. Leave these options out to go on with what it has, or start from a checkpoint "
                "that is not patched (hf_relpos.unpatch_model makes one)."
            )
        return model
    if args.schemes == ["none"]:
        logger.warning("--schemes none: the model keeps its own positions and gets no relative ones.")
        return model
    return patch_model(model, args.to_config())


def trainer_for(
    model: PreTrainedModel, args: RelPosTrainingArguments, trainer: type[Trainer] = Trainer
) -> Callable[..., Trainer]:
    """A Trainer that gives tables and gates their own learning rate; for a plain model, the Trainer as it is.

    Raises:
        CommandError: a learning rate for tables and gates was given, but the model has none that learn.
    """
    learns = is_patched(model) and RelPosConfig.of(model.config.relpos).learns
    if args.relpos_lr is not None and not learns:
        raise CommandError(
            f"--relpos_lr {args.relpos_lr} has no effect on a model "
            + ("whose relative positions learn nothing" if is_patched(model) else "without relative positions")
            + ": leave it out."
        )
    if is_patched(model):
        return partial(type(f"RelPos{trainer.__name__}", (RelPosTrainerMixin, trainer), {}), relpos_lr=args.relpos_lr)
    return trainer


def check_length(what: str, length: int, model: PreTrainedModel) -> None:
    """Raise `CommandError` if inputs of `length` tokens are longer than the model's own positions allow."""
    limit = max_length(model)
    if limit is not None and length > limit:
        raise CommandError(
            f"{what}: {length} tokens are more than the {limit} positions that the model was pretrained "
            f"with. Give {limit} or less, or drop those positions with --native drop."
        )


def max_length(model: PreTrainedModel) -> int | None:
    """The longest input that the model takes; None if there is no limit."""
    relpos = getattr(model.config, "relpos", None)
    if relpos is not None and relpos["native"] == "drop":
        return None
    return getattr(model.config, "max_position_embeddings", None)


def check_resume(checkpoint: str | None, model: PreTrainedModel) -> None:
    """Raise `CommandError` if `checkpoint` was trained with other relative positions than `model` has.

    Without this check `Trainer` would load the weights whose names fit and go on with a warning.
    """
    config_file = Path(checkpoint or "", "config.json")
    if checkpoint is None or not config_file.is_file():
        return
    # `engine` says how attention is computed, not what: it may differ.
    saved, current = (
        {k: v for k, v in (relpos or {}).items() if k not in ("engine", "version")}
        for relpos in (
            json.loads(config_file.read_text()).get("relpos"),
            json.loads(model.config.to_json_string(use_diff=False)).get("relpos"),
        )
    )
    if saved != current:
        raise CommandError(
            f"The checkpoint {checkpoint} was trained with relpos={saved or None}, and the model to resume "
            f"has relpos={current or None}. Give the options of the first run again, or start a new run "
            "without --resume_from_checkpoint."
        )
