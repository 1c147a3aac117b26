"""What the class of a patched model adds to its family's: how it is built, initialised, loaded and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn
from transformers import PreTrainedModel

from hf_relpos.config import RelPosConfig, refuse_choices
from hf_relpos.errors import PatchStateError
from hf_relpos.families import Family
from hf_relpos.modeling import state, wiring
from hf_relpos.modeling.configs import warn_of_other_attention, with_relpos

# The mixin always stands before a PreTrainedModel; only the type checker is told so.
_Base: Any = PreTrainedModel if TYPE_CHECKING else object


class RelPosModelMixin(_Base):
    """What a patched model's class adds to its family's: how it is built, initialised and loaded.

    Attributes:
        relpos_family: the family's spec.
        relpos_original: the family's class, which the model had before it was patched.
        relpos_class_of: the class that modules of a class have in a patched model; None if they keep theirs.
    """

    relpos_family: Family
    relpos_original: type
    relpos_class_of: Callable[[type], type | None]
    config: Any
    model_tags: ClassVar = ["hf_relpos"]
    # Our attention is called by its own name; a caller that would switch to flash kernels must be told no.
    _supports_flash_attn = False

    def __init__(self, config: Any, *args: Any, relpos: Any = None, **kwargs: Any) -> None:
        """Build the model, with the relative positions of its config.

        Args:
            config: the family's patched config; or its own, with ``relpos``.
            *args: what the family's class takes besides.
            relpos: relative positions that the config lacks.
            **kwargs: what the family's class takes besides.

        Raises:
            PatchStateError: if there are no relative positions, or two different ones.
            UnsupportedModelError: if the config is none of these.
            UnknownFieldError: (a ``TypeError``) for choices beside ``relpos`` that belong into it.
        """
        refuse_choices(type(self).__name__, {name: kwargs[name] for name in kwargs.keys() & RelPosConfig.names()})
        super().__init__(with_relpos(config, relpos, type(self)), *args, **kwargs)

    def post_init(self) -> None:
        """Called last by the family's constructor: give the model its relative positions."""
        config = RelPosConfig.of(self.config.relpos)
        wiring.attach(self, self.relpos_family, config, self.relpos_class_of, keep_dropped=False)
        super().post_init()

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the model as every model is saved; refuse one whose config says what the model is not.

        Raises:
            PatchStateError: if the config was edited after the model was patched.
        """
        state.check_config(self)
        super().save_pretrained(save_directory, *args, **kwargs)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Keep our attention, and say so: any other would leave the relative positions out."""
        warn_of_other_attention(attn_implementation)

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Refused: a family that can do it puts a table of its own in the place of the gated, bounded or dropped one.

        Raises:
            PatchStateError: always.
        """
        raise PatchStateError(
            f"{type(self).__name__} cannot have its positions resized to {new_num_position_embeddings}: the table is "
            "part of the patch. Resize the plain model's (unpatch_model makes it one again), then patch it; or patch "
            'with native="drop", which knows no length.'
        )

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, also for ``generate_batch``, which calls it.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{type(self).__name__} does not support continuous batching (generate_batch, or cache_implementation="
            "'paged'): several sequences lie in one row there, and relative positions would be counted across them. "
            "Call generate with a padded batch."
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load into the model that is there, as the Trainer does to resume.

        Raises:
            PatchStateError: if the weights were saved with other relative positions.
        """
        state.check_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # Loading leaves parameters that the checkpoint does not have uninitialised, and asks, for each module, the nearest
    # model around it to initialise them. All models inside a patched one are patched, so that is always this.

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        _reset(module)

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """A plain checkpoint has none of the added parameters: that is no loss. Having only some of them is one."""
        super()._adjust_missing_and_unexpected_keys(loading_info)
        strange = state.strange_keys(self, map(self._as_named_here, loading_info.unexpected_keys))
        if strange:
            raise PatchStateError(
                f"The checkpoint was made with other relative positions than {type(self).__name__} was asked for: it "
                f"has {strange[0]!r}, for which {RelPosConfig.of(self.config.relpos)} has no place. Load it without "
                "`relpos=...`; to change its relative positions, unpatch_model it and patch it again."
            )
        added = {name for name, _, _ in state.added_parameters(self)}
        if added <= set(loading_info.missing_keys):
            loading_info.missing_keys = set(loading_info.missing_keys) - added
        if self.config.relpos["native"] == "drop":
            tables = tuple(f".{native.table}.weight" for _, native, _ in self.relpos_family.native_tables(self))
            loading_info.unexpected_keys = {
                key for key in loading_info.unexpected_keys if not f".{key}".endswith(tables)
            }

    def _as_named_here(self, key: str) -> str:
        """A checkpoint's key as this model would have it: with or without a head, the base model's names differ."""
        prefix = f"{self.base_model_prefix}."
        return key.removeprefix(prefix) if self.base_model is self else prefix + key.removeprefix(prefix)


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_relpos_parameters", None)
    if reset is not None:
        reset()
