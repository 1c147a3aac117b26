"""The config classes of patched models, one per family: the family's own config and a field ``relpos``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.utils import logging

from hf_relpos.compat import transformers as compat
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError, UnsupportedModelError
from hf_relpos.families import FAMILIES, Family
from hf_relpos.names import ATTENTION_NAME, CLASS_PREFIX, TYPE_PREFIX

logger = logging.get_logger(__name__)


_prepare: Callable[[Family], None] | None = None


def before_models(prepare: Callable[[Family], None]) -> None:
    """Have one function called, with the family, each time a config of a patched model is made."""
    global _prepare
    _prepare = prepare


def warn_of_other_attention(asked: Any) -> None:
    """Say, once, that another attention implementation was asked for and will not be used."""
    if asked not in (None, ATTENTION_NAME):
        logger.warning_once(
            f"attn_implementation={asked!r} has no effect on a patched model: its attention is hf_relpos's own. Choose "
            "how it is computed with RelPosConfig(engine=...)."
        )


class RelPosConfigMixin:
    """What a patched model's config adds to its family's: ``relpos``, and the attention that goes with it.

    Attributes:
        relpos: :class:`RelPosConfig` as plain JSON. May be set to anything :meth:`RelPosConfig.of` takes.
    """

    relpos_family: Family

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[misc]
        # The Auto classes meet a config before they look for its model: this is the moment to have the models ready.
        if _prepare is not None:
            _prepare(self.relpos_family)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "relpos" and value is not None:
            value = RelPosConfig.of(value).to_dict()
        super().__setattr__(name, value)

    @property
    def _attn_implementation(self) -> str:
        """Always ours: any other implementation would leave the relative positions out, silently."""
        return ATTENTION_NAME

    @_attn_implementation.setter
    def _attn_implementation(self, value: Any) -> None:
        warn_of_other_attention(value)
        self._attn_implementation_internal = value

    # The family's config refuses to record attentions with any implementation but "eager"; ours can.

    @property
    def output_attentions(self) -> bool | None:
        """Whether the model returns its attention weights."""
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Nothing to refuse."""

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The stored config; that of a plain checkpoint of the family is taken for ours."""
        values, unused = super().get_config_dict(*args, **kwargs)  # type: ignore[misc]
        if values.get("model_type") == cls.relpos_family.package:
            values = {**values, "model_type": cls.model_type}  # type: ignore[attr-defined]
        return values, unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The config that was stored, with the changes asked for; of its relative positions, only the engine's.

        Where fewer layers are asked for than were stored, the first ones stay: ``relpos.layers`` names those of them.

        Raises:
            PatchStateError: if other relative positions are asked for than were stored, or layers that have none.
        """
        _refuse_other(config_dict.get("relpos"), kwargs.get("relpos"))
        made = super().from_dict(config_dict, **kwargs)  # type: ignore[misc]
        config = made[0] if isinstance(made, tuple) else made
        if kwargs and config.relpos is not None and config.relpos["layers"] is not None:
            _keep_first_layers(config, _depth(super().from_dict(config_dict)))  # type: ignore[misc]
        return made


def _refuse_other(stored: Any, asked: Any) -> None:
    """Refuse relative positions other than the stored ones, apart from the engine, if both are given."""
    if stored is None or asked is None:
        return
    stored, asked = RelPosConfig.of(stored), RelPosConfig.of(asked)
    if replace(stored, engine=asked.engine) != asked:
        raise PatchStateError(
            f"The checkpoint has {stored}, but relpos={asked} was asked for; only the engine may differ. Load "
            "it without relpos=...; to change its relative positions, unpatch_model it and patch it again."
        )


def _keep_first_layers(config: Any, stored_depth: int) -> None:
    """Take from the layers with relative positions those away that a config has no longer."""
    depth, layers = _depth(config), config.relpos["layers"]
    if depth >= stored_depth:
        return
    kept = [layer for layer in layers if layer < depth]
    if not kept:
        raise PatchStateError(
            f"The checkpoint has relative positions in the layers {layers}, and none of these is among the first "
            f"{depth} of {stored_depth}, which were asked for. Ask for at least {layers[0] + 1}; for a model without "
            "relative positions load them all, unpatch_model it, and cut it down."
        )
    config.relpos = {**config.relpos, "layers": kept}


def _depth(config: Any) -> int:
    """The number of layers of a model's deepest stack, by the names that Transformers has for it."""
    return max(getattr(config, name, None) or 0 for name in _DEPTHS)


_DEPTHS = ("num_hidden_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def with_relpos(config: Any, relpos: Any, model_class: Any) -> Any:
    """The config that a patched model is built from: the one given, or a copy of it that has relative positions.

    Args:
        config: a patched model's; or the family's own, which becomes one.
        relpos: relative positions that the config lacks; None if they are in the config.
        model_class: the patched model's.

    Raises:
        PatchStateError: if there are no relative positions, or two different ones.
        UnsupportedModelError: if the config is of another family, or of a class that is neither.
    """
    family, name = model_class.relpos_family, model_class.__name__
    plain, ours = family.config_name, config_name_of(family)
    is_plain = type(config) is family.config_class
    if not is_plain and not (isinstance(config, family.config_class) and hasattr(config, "relpos_family")):
        raise UnsupportedModelError(
            f"{name} was given a {type(config).__name__} for its config, but takes a {ours}, or a {plain} itself "
            "together with relpos=..."
        )
    stored = getattr(config, "relpos", None)
    if stored is None and relpos is None:
        raise PatchStateError(
            f"{name} needs to know which relative positions to use, and its config, a {type(config).__name__}, has "
            "none. Pass them beside it, relpos=Shaw(max_distance=16), or in it, "
            f"{ours}.from_pretrained(..., relpos=Shaw(max_distance=16)). Or load a "
            f"{model_class.relpos_original.__name__}, and patch_model it."
        )
    if relpos is None and not is_plain:
        return config
    _refuse_other(stored, relpos)
    config = copy.deepcopy(config)
    if is_plain:
        config.__class__ = config_class_of(family)
        config.__dict__.pop("model_type", None)  # a loaded config holds it itself
    config.relpos = stored if relpos is None else relpos
    return config


def config_name_of(family: Family) -> str:
    """The name of a family's config class for patched models."""
    return CLASS_PREFIX + family.config_name


@cache
def config_class_of(family: Family) -> Any:
    """A family's config class for patched models, made when first asked for.

    It lives in this module under its name, so that it can be pickled.
    """
    base, name = family.config_class, config_name_of(family)
    namespace = {
        "__module__": __name__,
        "__qualname__": name,
        "__doc__": f"{base.__name__} and the field ``relpos``; see :class:`RelPosConfigMixin`.",
        "__annotations__": {"relpos": Any},
        "relpos": None,
        "model_type": TYPE_PREFIX + family.package,
        "relpos_family": family,
    }
    made: Any = strict(type(name, (RelPosConfigMixin, base), namespace))
    globals()[name] = made
    return made


def __getattr__(name: str) -> Any:
    for family in FAMILIES.values():
        if name == config_name_of(family):
            return config_class_of(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Make the config classes of all families known to ``AutoConfig`` (again, harmlessly, if called twice)."""
    for family in FAMILIES.values():
        compat.register_config(TYPE_PREFIX + family.package, partial(config_class_of, family))
