"""Puts the pieces into a Transformers model and takes them out again: modules and classes, never a forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import NothingPatchedError, PatchStateError, RelPosConfigError
from hf_relpos.families import Family
from hf_relpos.families.tables import ungate
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling.sharing import SHARED_FROM, SharedFrom, relpos_of
from hf_relpos.modeling.stacks import PLAIN, Stack, plain_attentions, stacks_of
from hf_relpos.schemes import AttentionGeometry


def attach(
    model: PreTrainedModel,
    family: Family,
    config: RelPosConfig,
    patched_class: Callable[[type], type | None],
    keep_dropped: bool,
) -> None:
    """Give every self-attention of a model its relative positions. All checks come before the first change.

    Args:
        model: of the family; modules that have theirs already are left alone.
        family: its spec.
        config: all the choices.
        patched_class: the class that modules of a class are to have; None if they keep their own.
        keep_dropped: whether to keep dropped native tables for the way back.

    Raises:
        NothingPatchedError: if there is no self-attention, ``config.layers`` names layers that are not there, or there
            are no native positions that could become what ``config.native`` says.
        RelPosConfigError: if a scheme cannot act in this model's attention.
    """
    stacks = stacks_of(model, family)
    _check_layers(model, family, config, stacks)
    _check_rotation(model, family, config)
    tables = family.stock_tables(model, config.native)
    layers = [_build_layers(model, stack, family, config) for stack in stacks]
    for stack, (shared, own) in zip(stacks, layers, strict=True):
        if shared is not None:
            stack.module.relpos = shared
        for attention, layer in own:
            if layer is not None:
                attention.relpos = layer
            else:
                attention.__dict__[SHARED_FROM] = SharedFrom(stack.module)
    for native, owner in tables:
        native.change(owner, config.native, keep_dropped)
    for attention in plain_attentions(model, family):
        attention.__dict__[PLAIN] = True
    _swap_classes(model, patched_class)


def has_lost_positions(model: PreTrainedModel, family: Family) -> bool:
    """Whether a patched model never had the native positions that would have to come back."""
    return any(native.is_lost(owner) for _, native, owner in family.native_tables(model))


def detach(model: PreTrainedModel, family: Family) -> None:
    """Undo :func:`attach`. All checks come before the first change.

    Raises:
        PatchStateError: if the model never had the native positions that would have to come back.
    """
    tables = [(native, owner) for _, native, owner in family.native_tables(model)]
    if has_lost_positions(model, family):
        raise PatchStateError(
            f"{type(model).__name__} cannot be unpatched: its native positions were dropped, and it was not made by "
            "patch_model from a model that had them. Load the original checkpoint instead."
        )
    wrapped = [path for path, module in model.named_modules() if not _is_ours(module._modules.get("relpos"))]
    if wrapped:
        raise PatchStateError(
            f"{type(model).__name__} cannot be unpatched: its relative positions are wrapped (by an adapter, at "
            f"{wrapped[0]!r}). Merge or unload the adapter first."
        )
    for module in list(model.modules()):
        if isinstance(module._modules.get("relpos"), RelPosLayer):
            del module.relpos
        module.__dict__.pop(SHARED_FROM, None)
        module.__dict__.pop(PLAIN, None)
    for native, owner in tables:
        native.restore(owner, _like(owner, model))
    ungate(model)
    _swap_classes(model, lambda swapped: getattr(swapped, "relpos_original", None))


def _swap_classes(model: PreTrainedModel, new_class: Callable[[type], type | None]) -> None:
    """Give modules their new classes, also where Transformers names those that must stay in one piece on a device."""
    names = {}
    for module in model.modules():
        new = new_class(type(module))
        if new is not None:
            names[type(module).__name__] = new.__name__
            module.__class__ = new
    for module in model.modules():
        unsplit = vars(module).get("_no_split_modules")
        if unsplit:
            module._no_split_modules = {names.get(name, name) for name in unsplit}


def _is_ours(child: nn.Module | None) -> bool:
    return child is None or isinstance(child, RelPosLayer)


def _check_layers(model: PreTrainedModel, family: Family, config: RelPosConfig, stacks: list[Stack]) -> None:
    if not stacks:
        found = sorted({type(module).__name__ for module in model.modules() if "Attention" in type(module).__name__})
        raise NothingPatchedError(
            f"{type(model).__name__} has no {family.attention} that does self-attention; its attention modules are: "
            f"{', '.join(found) or 'none'}. Nothing was patched."
        )
    deepest = max(len(stack.attentions) for stack in stacks)
    beyond = [layer for layer in config.layers or () if layer >= deepest]
    if beyond:
        raise NothingPatchedError(
            f"RelPosConfig: `layers` names {beyond}, but {type(model).__name__} has the layers 0 to {deepest - 1}. "
            "Nothing was patched."
        )


def _check_rotation(model: PreTrainedModel, family: Family, config: RelPosConfig) -> None:
    """Refuse what cannot act on queries and keys that the family has rotated by their positions already."""
    if not any(native.rotate for native in family.natives):
        return
    for scheme in config.scheme_configs:
        clash = scheme.parts & {"rotation", "query", "key"}
        if clash:
            raise RelPosConfigError(
                f"RelPosConfig: {type(model).__name__} rotates its queries and keys by their positions, and the scheme "
                f"{scheme.name!r} would {'rotate' if 'rotation' in clash else 'multiply'} what is rotated already. "
                "Take a scheme that is a bias, or one on the values."
            )
    if config.gate == "token":
        raise RelPosConfigError(
            f"RelPosConfig: {type(model).__name__} rotates its queries by their positions, and `gate` is 'token', "
            "which would be computed from the rotated query. Take 'head' or 'none'."
        )


def _build_layers(
    model: PreTrainedModel, stack: Stack, family: Family, config: RelPosConfig
) -> tuple[RelPosLayer | None, list[tuple[nn.Module, RelPosLayer | None]]]:
    """The stack's shared module, and each attention's own (None: it uses the shared one)."""
    shared: RelPosLayer | None = None
    own: list[tuple[nn.Module, RelPosLayer | None]] = []
    for index, attention in enumerate(stack.attentions):
        if relpos_of(attention) is not None:
            continue
        active = config.layers is None or index in config.layers
        geometry = replace(family.geometry(attention), layer=index, num_layers=len(stack.attentions))
        if config.share_layers and active:
            shared = shared or _build_layer(model, attention, geometry, config, active)
            own.append((attention, None))
        else:
            own.append((attention, _build_layer(model, attention, geometry, config, active)))
    return shared, own


def _build_layer(
    model: PreTrainedModel, attention: nn.Module, geometry: AttentionGeometry, config: RelPosConfig, active: bool
) -> RelPosLayer:
    like = _like(attention, model)
    with torch.device(like.device):
        layer = RelPosLayer(config, geometry, active)
    return layer.to(like.dtype).train(attention.training)


def _like(module: nn.Module, model: nn.Module) -> torch.Tensor:
    """A tensor whose device and dtype new parameters of a module take; quantised weights are passed over.

    Where a module has nothing but quantised weights, they may be no parameters at all: the model's are asked then.
    """
    parameters = list(module.parameters()) or list(model.parameters())
    for parameter in parameters:
        if parameter.is_floating_point():
            return parameter
    return torch.empty(0, device=parameters[0].device if parameters else None)
