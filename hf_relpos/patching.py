"""The way in and the way out: ``patch_model``, ``unpatch_model``, ``is_patched``."""

from __future__ import annotations

from typing import Never, TypeVar

from transformers import PreTrainedModel
from transformers.utils import logging

from hf_relpos.compat.accelerate import undo_preparing
from hf_relpos.compat.transformers import mark_initialized
from hf_relpos.config import RelPosConfig, RelPosLike, refuse_choices
from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state, wiring
from hf_relpos.modeling.admission import patchable, prepared_modules
from hf_relpos.modeling.configs import config_class_of
from hf_relpos.modeling.finding import patched_inside
from hf_relpos.modeling.held_configs import change_configs, restore_configs
from hf_relpos.modeling.state import is_patched, is_patched_model
from hf_relpos.modeling.unchanged import unchanged_on_error
from hf_relpos.models import patched_class

__all__ = ["is_patched", "patch_model", "unpatch_model"]

logger = logging.get_logger(__name__)

Model = TypeVar("Model", bound=PreTrainedModel)


def patch_model(model: Model, relpos: RelPosLike, **choices: Never) -> Model:
    """Give a pretrained model relative positions, in place.

    With tables that start at zero (the default) the model computes what it computed before, and learns from there.
    Its class becomes ``RelPos<Original>``, still a subclass of what it was.

    Args:
        model: a model of Transformers, of one of ``hf_relpos.families.FAMILIES``, with any head. Patch before wrapping
            it (PEFT, DDP, ``torch.compile``, ``accelerator.prepare``) and before making the optimizer.
        relpos: a scheme config (``Shaw(max_distance=16)``), a scheme's name (``"t5"``), a list of several, which add
            up, or a :class:`RelPosConfig`, which has all the choices.
        **choices: none; those of a :class:`RelPosConfig`, given here, are told where they belong.

    Returns:
        The same object.

    Raises:
        UnsupportedModelError: (a ``TypeError``) if it is no such model; says what is supported, or what to do first.
        PatchStateError: (a ``ValueError``) if the model is patched already.
        NothingPatchedError: (a ``ValueError``) if there is no layer to patch, or the model has no native positions
            that could be gated or dropped.
        RelPosConfigError: (a ``ValueError``) for a wrong choice; for one given beside ``relpos``, an
            :class:`UnknownFieldError` (also a ``TypeError``).

    Whatever is raised, the model is unchanged.
    """
    refuse_choices("patch_model", choices)
    family = patchable(model)
    config = RelPosConfig.of(relpos)
    prepared = prepared_modules(model, "Patch", patched_class)
    advice = [scheme.advice(family.trained_length(model.config)) for scheme in config.scheme_configs]
    with unchanged_on_error(model.modules()):
        wiring.attach(model, family, config, patched_class, keep_dropped=True)
        for _, added in state.added_modules(model):
            mark_initialized(added)
        undo_preparing(prepared)
        change_configs(model, config_class_of(family), config)
        for words in filter(None, advice):
            logger.warning_once(words)
    return model


def unpatch_model(model: Model) -> Model:
    """Take the relative positions out again, in place: class, config, parameter names and values are as they were.

    What training changed in the parameters the model was loaded with stays changed; all added ones are gone.

    Args:
        model: a patched model.

    Returns:
        The same object.

    Raises:
        PatchStateError: if the model is not patched, or its native positions are not there to come back (dropped in
            the checkpoint it was loaded from). The model is unchanged.
    """
    if not is_patched_model(model):
        raise PatchStateError(f"{type(model).__name__} is not patched. {patched_inside(model)}".rstrip())
    family = model.relpos_family
    prepared = prepared_modules(model, "Unpatch", patched_class)
    with unchanged_on_error(model.modules()):
        wiring.detach(model, family)
        undo_preparing(prepared)
        restore_configs(model, config_class_of(family))
    return model
