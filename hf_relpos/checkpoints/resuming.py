"""Refuses to go on from a checkpoint that was made with other relative positions than the model has.

Loading into a model that is there already (to resume a training, to take the best checkpoint) skips what does not fit,
with a warning at most: training would go on with tables that start from zero.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from torch import nn

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state


def check_checkpoint(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Refuse a checkpoint folder whose model has other relative positions than this one, or none where it has some.

    The engine may differ: all compute the same. A folder without a config (an adapter's, a state of accelerate's) says
    nothing of the model's choices and passes; :func:`hf_relpos.modeling.state.check_state` still looks at what is
    loaded from it.

    Args:
        model: to be trained on, patched or not; may be wrapped.
        folder: as the Trainer and ``save_pretrained`` write it.

    Raises:
        PatchStateError: names the choices of both.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        return
    stored = json.loads(path.read_text(encoding="utf-8")).get("relpos")
    theirs = None if stored is None else RelPosConfig.of(stored)
    ours = state.choices_of(model)
    if _but_engine(theirs) != _but_engine(ours):
        raise PatchStateError(
            f"The checkpoint {str(folder)!r} was made with {state.in_words(theirs)}, but the {type(model).__name__} it "
            f"is to be loaded into has {state.in_words(ours)}. Patch the model as it was patched then, or load the "
            "checkpoint with from_pretrained and train that."
        )


def _but_engine(config: RelPosConfig | None) -> RelPosConfig | None:
    return None if config is None else replace(config, engine="auto")
