"""What a conversion keeps in its folder, so that one that was interrupted goes on as if nothing had been."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_relpos.conversion.callbacks import StopAtFidelity
from hf_relpos.conversion.errors import ConversionError

RECORD = "conversion.json"
_STATE = "trainer_state.json"  # the file of a checkpoint that the Trainer writes last


def check_folder(folder: Path | None, settings: Mapping[str, Any], resume: bool) -> None:
    """Refuse a folder that another conversion was begun in, or one to resume in that none was. Writes nothing.

    Args:
        folder: which need not exist; None where nothing is kept.
        settings: all that the result depends on, as JSON has it.
        resume: whether to go on with what is there.

    Raises:
        ConversionError: if there is a conversion that is not to be resumed, one with other settings, or none that
            could be resumed.
    """
    record = None if folder is None else folder / RECORD
    if record is None or not record.is_file():
        if resume:
            where = "there is no `output_dir`" if folder is None else f"in `output_dir`, {folder}, none was begun"
            raise ConversionError(
                f"`resume` is True, but there is no conversion to go on with: {where}. Give the folder of one that was "
                "interrupted, or leave `resume` out."
            )
        return
    if not resume:
        raise ConversionError(
            f"In `output_dir`, {folder}, a conversion was begun already. Go on with it by resume=True, or "
            "give another folder."
        )
    theirs = json.loads(record.read_text(encoding="utf-8"))
    differ = [name for name in settings if settings[name] != theirs.get(name)]
    if differ:
        told = "; ".join(f"`{name}` was {theirs.get(name)!r} and is {settings[name]!r}" for name in differ)
        raise ConversionError(
            f"In `output_dir`, {folder}, a conversion with other settings was begun: {told}. Give those to go "
            "on with it, or another folder."
        )


def open_folder(folder: Path, settings: Mapping[str, Any]) -> None:
    """Make a folder that was checked, and write down what is done in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def has_checkpoint(folder: Path) -> bool:
    """Whether a conversion has left something in its folder to go on from."""
    return any(last_checkpoint(stage) is not None for stage in folder.glob("*/"))


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint of a stage that was written to its end, if there is one."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    return next((path for path in found if _state(path) is not None), None)


def is_finished(checkpoint: Path) -> bool:
    """Whether the stage that wrote a complete checkpoint had come to its end: its last step, or its target."""
    state = _state(checkpoint) or {}
    stopped = state["stateful_callbacks"].get(StopAtFidelity.__name__, {}).get("attributes", {}).get("reached", False)
    return stopped or state["global_step"] >= state["max_steps"]


def _state(checkpoint: Path) -> dict[str, Any] | None:
    try:
        return json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
