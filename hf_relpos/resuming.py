"""Refuses to go on from a checkpoint that was made with other relative positions than the model has.

Loading into a model that is there already (to resume a training, to take the best checkpoint) skips what does not fit,
with a warning at most: training would go on with tables that start from zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import nn

from hf_relpos.config import RelPosConfig
from hf_relpos.configuration import RelPosConfigMixin
from hf_relpos.errors import PatchStateError

# What wrappers put into the names of parameters, and take out again when they save.
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def check_checkpoint(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Refuse a checkpoint folder whose model has other relative positions than this one, or none where it has some.

    The engine may differ: all compute the same. A folder without a config (an adapter's, a state of accelerate's) says
    nothing of the model's choices and passes; :func:`check_state` still looks at what is loaded from it.

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
    ours = _choices(model)
    if _but_engine(theirs) != _but_engine(ours):
        raise PatchStateError(
            f"The checkpoint {str(folder)!r} was made with {_in_words(theirs)}, but the {type(model).__name__} it is "
            f"to be loaded into has {_in_words(ours)}. Patch the model as it was patched then, or load the checkpoint "
            "with from_pretrained and train that."
        )


def check_state(model: nn.Module, keys: Iterable[str], prefix: str = "") -> None:
    """Refuse tensors to be loaded into a patched model if it has no place for some of their relative positions.

    Weights without any (a plain checkpoint's, or an adapter's) pass.

    Args:
        model: patched.
        keys: of the state dict.
        prefix: with which the model's own keys start.

    Raises:
        PatchStateError: names the first strange tensor and the model's choices.
    """
    own = {_clean(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    if any("_flat_param" in name for name in own):
        return  # the first FSDP, which hides the names until it loads
    inside = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    strange = sorted(key for key in inside if "relpos" in key and _clean(key) not in own)
    if strange:
        raise PatchStateError(
            f"The weights were saved with other relative positions than {type(model).__name__} has: they have "
            f"{strange[0]!r}, for which {_in_words(_choices(model))} has no place. Patch the model as it was patched "
            "then, or load them with from_pretrained."
        )


def _choices(model: nn.Module) -> RelPosConfig | None:
    """The choices of a patched model, or of the one a wrapper holds; None if there is none."""
    for module in model.modules():
        config = getattr(module, "config", None)
        relpos = getattr(config, "relpos", None) if isinstance(config, RelPosConfigMixin) else None
        if relpos is not None:
            return RelPosConfig.of(relpos)
    return None


def _but_engine(config: RelPosConfig | None) -> RelPosConfig | None:
    return None if config is None else replace(config, engine="auto")


def _in_words(config: RelPosConfig | None) -> str:
    return "no relative positions" if config is None else str(config)


def _clean(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
