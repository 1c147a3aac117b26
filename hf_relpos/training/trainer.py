"""A Trainer whose optimizer has groups for what a patch added, and that resumes from the same patch only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Trainer

from hf_relpos.checkpoints.resuming import check_checkpoint
from hf_relpos.training.groups import groups_of

# The mixin always stands before a Trainer; only the type checker is told so.
_Base: Any = Trainer if TYPE_CHECKING else object


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
        groups = groups_of(
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
