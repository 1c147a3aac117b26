"""The memory that training steps take, measured in a process that does nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class StepMemory(TrainerCallback):
    """What training adds to what the process held before it: the highest peak of all steps, without evaluations.

    On CUDA it is the memory of the device, else that of the process as Linux counts it; elsewhere it is not measured.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._peak: float | None = None

    @property
    def mib(self) -> float | None:
        """The peak in MiB; None where the system does not tell."""
        return None if self._peak is None else self._peak - self._before

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note what is held."""
        if torch.cuda.is_available():
            self._before = torch.cuda.memory_allocated() / 2**20
        elif _STATUS.exists():
            self._before = _status("VmRSS")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the peak of what was before the step."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        elif _CLEAR.exists():
            _CLEAR.write_text("5", encoding="ascii")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the peak of the step."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() / 2**20
        elif _STATUS.exists():
            peak = _status("VmHWM")
        else:
            return
        self._peak = max(peak, self._peak or 0.0)


def _status(field: str) -> float:
    """An entry of the process's memory status, in MiB."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
