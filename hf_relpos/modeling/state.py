"""The one truth about a patched model: its choices, what was added, and whether it still is what its config says."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_relpos.compat.pytorch import are_flattened, without_wrappers
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError, RelPosError, UnsupportedModelError
from hf_relpos.families import Family
from hf_relpos.families.tables import NativeGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling.sharing import SHARED_FROM, relpos_of
from hf_relpos.modeling.stacks import stacks_of
from hf_relpos.names import LAYER, NATIVE_GATE, TYPE_PREFIX
from hf_relpos.schemes import AttentionGeometry


def is_patched(model: nn.Module) -> bool:
    """Whether a model, or a model inside it, has relative positions.

    Raises:
        UnsupportedModelError: (a ``TypeError``) for what is no model of PyTorch.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"is_patched takes a model, but was given {model!r} ({type(model).__name__}). Load it first."
        )
    return any(is_patched_model(module) or isinstance(module, RelPosLayer) for module in model.modules())


def is_patched_model(module: nn.Module) -> bool:
    """Whether a module itself is a patched model, of a ``RelPos...`` class."""
    return isinstance(module, PreTrainedModel) and hasattr(type(module), "relpos_family")


def check_config(model: PreTrainedModel) -> RelPosConfig:
    """The choices a patched model runs with.

    Raises:
        PatchStateError: if its config says something else, because one of the two was changed after the model was
            patched: the config edited, a native table replaced, a layer brought in that shares with another model's,
            layers removed or moved where the config names them, the direction of attention turned.
    """
    relpos = getattr(model.config, "relpos", None)
    if relpos is None:
        raise PatchStateError(
            f"A model inside {type(model).__name__} was unpatched alone. Call unpatch_model on the outer one as well."
        )
    config = RelPosConfig.of(relpos)
    for module in model.modules():
        if isinstance(module, RelPosLayer) and module.config != config:
            raise PatchStateError(
                f"The config of {type(model).__name__} says {config}, but the model runs with {module.config}: the "
                "config was edited after the model was patched. Call unpatch_model and patch_model instead."
            )
    _check_native(model, model.relpos_family, config)
    _check_shared(model, model.relpos_family)
    _check_acting(model, model.relpos_family, config)
    _check_twin(model, model.relpos_family)
    return config


def _check_native(model: PreTrainedModel, family: Family, config: RelPosConfig) -> None:
    """Refuse a native table that was put in after the patch, where the patch had changed the one before."""
    for path, native, owner in family.native_tables(model):
        if not native.agrees(owner, config.native):
            expected = {"gate": "gated", "drop": "dropped"}[config.native]
            raise PatchStateError(
                f"The config of {type(model).__name__} says native={config.native!r}, but the native table at "
                f"{path!r} is not {expected}: it was put there after the model was patched. Put it there before "
                "patch_model; or, where it is to be gated, change the weight of the patched table instead."
            )


def _check_shared(model: PreTrainedModel, family: Family) -> None:
    """Refuse layers that share the relative positions of another model: they would not be saved with this one."""
    for stack in stacks_of(model, family):
        for attention in stack.attentions:
            shared = attention.__dict__.get(SHARED_FROM)
            if shared is not None and shared.stack is not stack.module:
                path = next(path for path, module in model.named_modules() if module is attention)
                raise PatchStateError(
                    f"{type(model).__name__} has a layer that shares the relative positions of another model, at "
                    f"{path!r}: it was brought in from there. Take such a layer from this model (with copy.deepcopy) "
                    "and load the other's weights into it, or patch the model after the change."
                )


def _check_acting(model: PreTrainedModel, family: Family, config: RelPosConfig) -> None:
    """Refuse a model whose layers were removed or moved, so that ``layers`` no longer names those that act."""
    if config.layers is None:
        return
    stacks = [[relpos_of(attention) for attention in stack.attentions] for stack in stacks_of(model, family)]
    moved = {
        place
        for stack in stacks
        for place, own in enumerate(stack)
        if own is not None and bool(own.schemes) != (place in config.layers)
    }
    missing = {layer for layer in config.layers if layer >= max(map(len, stacks), default=0)}
    if moved or missing:
        raise PatchStateError(
            f"The config of {type(model).__name__} says layers={list(config.layers)}, but that is no longer so at the "
            f"layers {sorted(moved | missing)}: layers were removed or moved after the model was patched. Do that "
            "first: call unpatch_model, change the layers, and patch_model again with `layers` that fit."
        )


def _check_twin(model: PreTrainedModel, family: Family) -> None:
    """Refuse a model whose config makes other relative positions than the model has: it would not load as it is.

    That is so where the config was changed after the model was made, for one its direction (``is_decoder``), and a
    scheme goes by it. A twin that is made from the config, without memory for its parameters, tells.
    """
    made_as = next(made for made in type(model).__mro__ if "relpos_original" in vars(made))
    try:
        with torch.device("meta"):
            twin = made_as(copy.deepcopy(model.config))
    except RelPosError as error:
        raise PatchStateError(f"{_changed(model)} A model made from its config: {error}") from error
    for stack, other in zip(stacks_of(model, family), stacks_of(twin, family), strict=False):
        for number, pair in enumerate(zip(stack.attentions, other.attentions, strict=False)):
            own, again = (relpos_of(attention) for attention in pair)
            if own is None or again is None:
                continue
            for path, what, is_now, would_be in _differences(own, again):
                where = f"layer {number} of {stack.path or 'the model'}"
                raise PatchStateError(
                    f"{_changed(model)} In {where}, {path} has {what} {is_now!r}, and would have {would_be!r}."
                )


def _changed(model: PreTrainedModel) -> str:
    return (
        f"The config of {type(model).__name__} was changed after the model was made (is_decoder, is_causal, the heads, "
        "or what else its attention goes by), and the model would load with other relative positions than it has. Undo "
        "the change. Or call unpatch_model, save the model, load it with the change, and patch that."
    )


def _differences(own: nn.Module, again: RelPosLayer) -> Iterator[tuple[str, str, Any, Any]]:
    """In what the relative positions of a layer differ from those made anew: where, what, as it is, as it would be."""
    layer = next(module for module in own.modules() if isinstance(module, RelPosLayer))  # an adapter may be around it
    for path, other in again.named_modules():
        module: Any = layer.get_submodule(path)
        for name, value in vars(other).items():
            public = not name.startswith("_") and name != "training"
            if public and isinstance(value, _PLAIN) and vars(module).get(name, value) != value:
                yield path, name, vars(module)[name], value
        for name, parameter in other.named_parameters(recurse=False):
            mine = module.get_parameter(name)
            if type(mine.data) is torch.Tensor and mine.numel() and mine.shape != parameter.shape:
                yield path, f"{name} of shape", tuple(mine.shape), tuple(parameter.shape)


# What a scheme keeps of the attention it was built for is of these types.
_PLAIN = (bool, int, float, str, tuple, AttentionGeometry)


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
    strange = strange_keys(model, [key.removeprefix(prefix) for key in keys if key.startswith(prefix)])
    if strange:
        raise PatchStateError(
            f"The weights were saved with other relative positions than {type(model).__name__} has: they have "
            f"{strange[0]!r}, for which {in_words(patches_of(model))} has no place. Patch the model as it was patched "
            "then, or load them with from_pretrained."
        )


def strange_keys(model: nn.Module, keys: Iterable[str]) -> list[str]:
    """The keys of what a patch adds, among those of a state dict, for which a patched model has no place; sorted.

    A key is none if the model has not even the module that the parameter was added to: a layer, where the model was cut
    down to its first ones, or a decoder. It is left out with all the rest of that, as Transformers does.
    """
    own = {without_wrappers(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    if are_flattened(own):
        return []
    paths = {without_wrappers(path) for path, _ in model.named_modules()}
    return sorted(key for key in map(without_wrappers, keys) if key not in own and place_of(key) in paths)


def place_of(key: str) -> str | None:
    """The path of the module to which a patch has added the parameter of a state dict's key; None if none has."""
    parts = key.split(".")
    added = [index for index, part in enumerate(parts[:-1]) if part in (LAYER, NATIVE_GATE)]
    return ".".join(parts[: added[-1]]) if added else None


def patches_of(model: nn.Module) -> list[RelPosConfig]:
    """The choices of every patch in a model, wrapped or not, each once: those that its layers run with."""
    patches: list[RelPosConfig] = []
    for module in model.modules():
        if isinstance(module, RelPosLayer) and module.config not in patches:
            patches.append(module.config)
    return patches


def saved_patches(config: Mapping[str, Any], part: str = "") -> dict[str, RelPosConfig]:
    """The choices in a model's config as JSON, by the part of the model they are of: its own are those of ``""``.

    Args:
        config: as in a saved ``config.json``, which has those of an encoder-decoder's parts inside.
        part: what the config itself is of.

    Raises:
        RelPosConfigError: if this version cannot read them.
    """
    patches = {}
    if str(config.get("model_type")).startswith(TYPE_PREFIX) and config.get("relpos") is not None:
        patches[part] = RelPosConfig.of(config["relpos"])
    for name, value in config.items():
        if isinstance(value, Mapping):
            patches |= saved_patches(value, f"{part}.{name}".lstrip("."))
    return patches


def in_words(patches: Collection[RelPosConfig]) -> str:
    """Patches, or that there is none, as part of a sentence."""
    return " and ".join(map(str, patches)) or "no relative positions"


def added_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Every parameter a patch added to a model, wrapped or not: its name, the module that has it, itself.

    They are told by the type of the module they are in. Names do not tell: most of one may be the user's.
    """
    for path, module in added_modules(model):
        for inner_path, inner in module.named_modules(prefix=path):
            for name, parameter in inner.named_parameters(prefix=inner_path, recurse=False):
                yield name, inner, parameter


def added_modules(model: nn.Module) -> Iterator[tuple[str, RelPosLayer | NativeGate]]:
    """The modules a patch put into a model, with their paths."""
    for path, module in model.named_modules():
        if isinstance(module, (RelPosLayer, NativeGate)):
            yield path, module
