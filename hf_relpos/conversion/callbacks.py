"""What happens in a conversion besides its steps: what is shown of it, and the end as soon as the target is reached."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState


def tell(what: str, shown: bool) -> None:
    """Say what is done now, where no bar shows it: once, however many processes there are."""
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if shown and first:
        print(f"converting, {what} ...", file=sys.stderr, flush=True)


class ConversionProgress(ProgressCallback):
    """The Trainer's progress bar, with the stage's name and the agreement so far.

    Args:
        stage: the name.
        agreement: gives it.
    """

    def __init__(self, stage: str, agreement: Callable[[], float | None]) -> None:
        super().__init__()
        self._stage = stage
        self._agreement = agreement

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar."""
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(f"converting, {self._stage}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar on."""
        agreement = self._agreement()
        if self.training_bar is not None and agreement is not None:
            self.training_bar.set_postfix({"cosine": f"{agreement:.4f}"}, refresh=False)
        super().on_step_end(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print nothing: what matters is in the bar."""


class StopAtFidelity(TrainerCallback, ExportableState):
    """Ends a stage when the model is as much like the original as was asked for.

    Args:
        target: the least cosine of the embeddings, at each length that the original reads.
        measure: gives it now.
        every: how many steps lie between two looks.
        reached: whether it was, in a training that goes on.
    """

    def __init__(
        self, target: float, measure: Callable[[], float] | None = None, every: int = 50, reached: bool = False
    ) -> None:
        self.target = target
        self.every = every
        self.reached = reached
        self._measure = measure

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"args": {"target": self.target, "every": self.every}, "attributes": {"reached": self.reached}}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look, where it is time."""
        if self._measure is not None and state.global_step % self.every == 0 and self._measure() >= self.target:
            self.reached = True
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"
