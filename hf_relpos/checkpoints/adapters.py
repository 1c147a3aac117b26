"""PEFT: what an adapter has to save of a patched model, and the refusal of an adapter where that has no place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from torch import nn

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state
from hf_relpos.names import LAYER, NATIVE_GATE

# What the modules with added parameters are called: those of the attention layers, and the gate on a native table.
MODULES = (LAYER, NATIVE_GATE)

# What PEFT puts behind the path of a module that it saves whole.
_WRAPPED = re.compile(r"\.(original_module|modules_to_save\.[^.]+)$")

# How the entry of `modules_to_save` begins that names no module, but tells which patch the adapter was trained on.
PATCH_ENTRY = "relpos patch: "


def peft_modules_to_save(model: nn.Module) -> list[str]:
    """What belongs into ``modules_to_save`` of a PEFT config, so that the adapter trains and saves what a patch added.

    ``LoraConfig(task_type=..., modules_to_save=peft_modules_to_save(model))`` is all that is needed. The tables and
    gates are then trained in full, beside the adapter of the pretrained weights.

    The last entry names no module: it is the patch itself, as JSON. PEFT saves it with the adapter's config, and
    putting the adapter on a model that is not patched, or patched otherwise, is refused.

    PEFT goes by how the path of a module ends. Where that would also catch a module of the user's
    (``self.bert_relpos = ...``), whole paths are returned instead of names.

    Args:
        model: a patched model, or one that contains patched models.

    Returns:
        The names of the modules, and one entry per patch.

    Raises:
        PatchStateError: if nothing in the model is patched, or PEFT would take another module for an added one.
    """
    patches = state.patches_of(model)
    if not patches:
        raise PatchStateError(
            f"{type(model).__name__} is not patched, so there is nothing to save with an adapter. Call patch_model "
            "first, then make the adapter."
        )
    return _names_of_added(model) + [PATCH_ENTRY + json.dumps(patch.to_dict(), sort_keys=True) for patch in patches]


def _names_of_added(model: nn.Module) -> list[str]:
    """Names by which PEFT finds the added modules and no others: as short as possible."""
    paths = list(dict.fromkeys(_WRAPPED.sub("", path) for path, _ in state.added_modules(model)))
    others = [path for path, _ in model.named_modules() if path not in paths]
    last = {path.rpartition(".")[2] for path in paths}
    names = [name for name in MODULES if name in last]
    if not any(other.endswith(name) for other in others for name in names):
        return names
    whole = [path.removeprefix("base_model.model.") for path in paths]
    for name in whole:
        for other in others:
            if other.endswith(name):
                raise PatchStateError(
                    f"{type(model).__name__} has a module {other!r} that PEFT would train and save in full: its path "
                    f"ends like {name!r}, which the patch has added. Give it a name that does not end with {name!r}."
                )
    return whole


def check_adapter(model: nn.Module, modules_to_save: Iterable[str]) -> None:
    """Refuse an adapter whose relative tables and gates have no place in a model, or would act differently there.

    Args:
        model: what the adapter is put on.
        modules_to_save: of the adapter's config.

    Raises:
        PatchStateError: names the patch that the adapter needs and the one that the model has.
    """
    entries = list(modules_to_save)
    needed = [
        RelPosConfig.from_dict(json.loads(entry.removeprefix(PATCH_ENTRY)))
        for entry in entries
        if entry.startswith(PATCH_ENTRY)
    ]
    named = [entry for entry in entries if entry.rpartition(".")[2] in MODULES]
    if not needed and not named:
        return
    patches = state.patches_of(model)
    if not patches:
        what = f"on a model patched with {state.in_words(needed)}" if needed else f"with modules_to_save={named}"
        raise PatchStateError(
            f"This adapter was made {what}, but {type(model).__name__} is not patched: the adapter's relative tables "
            "would be lost. Load the patched model it was trained on, or call patch_model with the same choices on "
            "its base model, before putting the adapter on it."
        )
    if needed and {patch.function for patch in needed} != {patch.function for patch in patches}:
        raise PatchStateError(
            f"This adapter was made on a model patched with {state.in_words(needed)}, but {type(model).__name__} is "
            f"patched with {state.in_words(patches)}. Call unpatch_model and patch_model with the adapter's choices "
            "first."
        )


def check_mixed_batch(model: nn.Module) -> None:
    """Refuse a batch of several adapters for a model where each adapter has relative tables and gates of its own.

    They are the same for all rows of a batch, so there is no place for those of several adapters.

    Raises:
        PatchStateError: says what to do instead.
    """
    own = next((path for path, _ in state.added_modules(model) if _WRAPPED.search(path)), None)
    if own is not None:
        raise PatchStateError(
            f"adapter_names=[...] mixes adapters in one batch, but each adapter of this {type(model).__name__} has "
            f"relative tables and gates of its own (modules_to_save, at {_WRAPPED.sub('', own)!r}), and a batch is "
            "computed with those of one adapter. Call set_adapter, and pass the rows of each adapter by themselves."
        )
