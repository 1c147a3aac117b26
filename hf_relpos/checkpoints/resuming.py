"""Refuses to go on from a checkpoint that was made with other relative positions than the model has.

Loading into a model that is there already (to resume a training, to take the best checkpoint) skips what does not fit,
with a warning at most: training would go on with tables that start from zero.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state


def check_checkpoint(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Refuse a checkpoint folder whose model has other relative positions than this one, or none where it has some.

    What does not change the function may differ: the engine, and the values that training starts from. A folder without
    a config (an adapter's, a state of accelerate's) says nothing of the model's choices and passes;
    :func:`hf_relpos.modeling.state.check_state` still looks at what is loaded from it.

    Args:
        model: to be trained on, patched or not; may be wrapped.
        folder: as the Trainer and ``save_pretrained`` write it.

    Raises:
        PatchStateError: names the choices of both.
    """
    path = Path(folder) / "config.json"
    configs = (vars(module).get("config") for module in model.modules())
    config = next((config for config in configs if isinstance(config, PreTrainedConfig)), None)
    if config is None or not path.is_file():
        return
    theirs = state.saved_patches(json.loads(path.read_text(encoding="utf-8")))
    ours = state.saved_patches(config.to_dict())
    if _functions(theirs) != _functions(ours):
        raise PatchStateError(
            f"The checkpoint {str(folder)!r} was made with {state.in_words(theirs.values())}, but the "
            f"{type(model).__name__} it is to be loaded into has {state.in_words(ours.values())}. Patch the model as "
            "it was patched then, or load the checkpoint with from_pretrained and train that."
        )


def _functions(patches: dict[str, RelPosConfig]) -> dict[str, RelPosConfig]:
    return {part: patch.function for part, patch in patches.items()}
