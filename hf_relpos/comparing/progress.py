"""The bar over all runs of a plan."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class PlanProgress(TrainerCallback):
    """Moves a bar by each training step, and shows the latest accuracy behind it.

    Args:
        bar: of tqdm, which reckons the time left.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        self._bar.update()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Show the latest accuracy."""
        if logs and "eval_accuracy" in logs:
            self._bar.set_postfix(accuracy=f"{logs['eval_accuracy']:.3f}")
