"""The config objects that a model holds. They are changed in copies: the caller's own stay as they are."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.modeling.unchanged import unchanged_on_error
from hf_relpos.names import ATTENTION_NAME, CLASS_PREFIX


def change_configs(model: PreTrainedModel, config_class: Any, relpos: RelPosConfig) -> None:
    """Give a model that was just patched configs of its own, of a patched model's class."""

    def change(config: Any) -> None:
        _swap_class(config, config_class)
        config.relpos = relpos

    _change(model, config_class.relpos_family.config_class, change)


def update_configs(model: PreTrainedModel, relpos: RelPosConfig) -> None:
    """Give a patched model configs with other choices."""
    _change(model, type(model.config), lambda config: setattr(config, "relpos", relpos))


def restore_configs(model: PreTrainedModel, config_class: Any) -> None:
    """Give a model that was just unpatched, in the place of configs of this class, such of its family's class."""

    def change(config: Any) -> None:
        _swap_class(config, config_class.relpos_family.config_class)
        del config.relpos
        if config._attn_implementation == ATTENTION_NAME:  # of a model that was loaded, and never had another
            config._attn_implementation = model.get_correct_attn_implementation(None)
        if config.architectures:
            config.architectures = [name.removeprefix(CLASS_PREFIX) for name in config.architectures]

    _change(model, config_class, change)


def _swap_class(config: Any, config_class: type) -> None:
    """Give a config another class, and with it that class's model type, which a loaded config also holds itself."""
    config.__class__ = config_class
    config.__dict__.pop("model_type", None)


# For each config that is replaced, by its id: itself (an id is good for as long as the object lives), and the new one.
_New = dict[int, tuple[Any, Any]]


def _change(model: PreTrainedModel, config_class: type, change: Callable[[Any], None]) -> None:
    """Replace the configs of a class that a model's modules hold by changed copies, one for each object.

    What contains the model follows: where its config is one of these, or holds one (an encoder-decoder's does), it
    gets a copy that has the new one. Everybody else who holds them, another model too, keeps what he has.
    """
    new: _New = {}
    for module in model.modules():
        for config in _held(module).values():
            if type(config) is config_class and id(config) not in new:
                new[id(config)] = (config, copy.deepcopy(config))
    for _, changed in new.values():
        change(changed)
    around = list(_holders_around(model, new))
    with unchanged_on_error(around):
        for module in [*around, *model.modules()]:
            for name, config in _held(module).items():
                vars(module)[name] = _followed(config, new)


def _is_config(value: object) -> bool:
    """Whether an object is a config: by its type alone, since an attribute may be anything, a dead proxy for one."""
    return issubclass(type(value), PreTrainedConfig)


def _held(holder: object) -> dict[str, Any]:
    """The attributes of a module, or of a config, that are configs."""
    return {name: value for name, value in vars(holder).items() if _is_config(value)}


def _followed(config: Any, new: _New) -> Any:
    """What stands in the place of a config: its changed copy; a copy that holds such ones; or itself."""
    if id(config) not in new:
        parts = {name: _followed(part, new) for name, part in _held(config).items()}
        if all(parts[name] is part for name, part in _held(config).items()):
            return config
        copied = copy.copy(config)
        vars(copied).update(parts)
        new[id(config)] = (config, copied)
    return new[id(config)][1]


def _is_concerned(config: Any, new: _New) -> bool:
    """Whether a config is replaced, or holds one that is."""
    return id(config) in new or any(_is_concerned(part, new) for part in _held(config).values())


def _holders_around(model: PreTrainedModel, new: _New) -> Iterator[nn.Module]:
    """The modules that contain a model, and hold a config that is replaced or holds one.

    PyTorch keeps no way up from a module, so Python is asked for all the objects it keeps track of.
    """
    inside = set(map(id, model.modules()))
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and id(one) not in inside]
    for module in modules:
        if any(_is_concerned(config, new) for config in _held(module).values()) and model in module.modules():
            yield module
