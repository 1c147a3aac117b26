"""Puts the pieces into a Transformers model and takes them out again: modules and classes, never a forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_relpos.attention import SHARED_FROM, SharedFrom, relpos_of
from hf_relpos.config import RelPosConfig
from hf_relpos.errors import NothingPatchedError, PatchStateError
from hf_relpos.families import Family
from hf_relpos.layer import RelPosLayer
from hf_relpos.positions import DroppedTable, GatedTable, NativeGate, PositionTable

# Marks a module whose native table was dropped. Holds the table for the way back, in a tuple, so that PyTorch does not
# take it for a child; or nothing, in a model that never had it.
DROPPED = "_relpos_dropped"


@dataclass
class Stack:
    """The layers that count and share together: an encoder or a decoder."""

    path: str
    module: Any
    attentions: list[nn.Module] = field(default_factory=list)


def stacks_of(model: PreTrainedModel, family: Family) -> list[Stack]:
    """The stacks of a model with their self-attention modules, in order."""
    attention_class = getattr(family.modeling, family.attention)
    stacks: dict[str, Stack] = {}
    pretrained = {path: module for path, module in model.named_modules() if isinstance(module, PreTrainedModel)}
    for path, module in model.named_modules():
        if isinstance(module, attention_class) and not family.is_cross_attention(path, module):
            owner = max((p for p in pretrained if p == "" or path.startswith(p + ".")), key=len)
            stacks.setdefault(owner, Stack(owner, pretrained[owner])).attentions.append(module)
    return list(stacks.values())


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
        NothingPatchedError: if there is no self-attention, or ``config.layers`` names layers that are not there.
        RelPosConfigError: if a scheme cannot act in this model's attention.
    """
    stacks = stacks_of(model, family)
    _check_layers(model, family, config, stacks)
    layers = [_build_layers(stack, family, config) for stack in stacks]
    for stack, (shared, own) in zip(stacks, layers, strict=True):
        if shared is not None:
            stack.module.relpos = shared
        for attention, layer in own:
            if layer is not None:
                attention.relpos = layer
            else:
                attention.__dict__[SHARED_FROM] = SharedFrom(stack.module)
    for owner, table in list(_native_tables(model, family)):
        _change_native(owner, table, family, config, keep_dropped)
    _swap_classes(model, patched_class)


def check_config(model: PreTrainedModel) -> RelPosConfig:
    """The choices a patched model runs with.

    Raises:
        PatchStateError: if its config says something else, because one of the two was changed after the model was
            patched: the config edited, a native table replaced, a layer brought in that shares with another model's,
            layers removed or moved where the config names them.
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
    return config


def _check_native(model: PreTrainedModel, family: Family, config: RelPosConfig) -> None:
    """Refuse a native table that was put in after the patch, where the patch had changed the one before."""
    owner_class = getattr(family.modeling, family.native.owner)
    for path, module in model.named_modules():
        table = module._modules.get(family.native.table) if isinstance(module, owner_class) else None
        if table is None or config.native == "keep":
            continue
        # An adapter may have wrapped the table, with its gate.
        mark, expected = (NativeGate, "gated") if config.native == "gate" else (DroppedTable, "dropped")
        if not any(isinstance(inner, mark) for inner in table.modules()):
            where = f"{path}.{family.native.table}".lstrip(".")
            raise PatchStateError(
                f"The config of {type(model).__name__} says native={config.native!r}, but the native table at "
                f"{where!r} is not {expected}: it was put there after the model was patched. Put it there before "
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


def detach(model: PreTrainedModel, family: Family) -> None:
    """Undo :func:`attach`. All checks come before the first change.

    Raises:
        PatchStateError: if the model never had the native positions that would have to come back.
    """
    if any(module.__dict__.get(DROPPED) == () for module in model.modules()):
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
        if DROPPED in module.__dict__:
            (table,) = module.__dict__.pop(DROPPED)
            setattr(module, family.native.table, table.to(_like(module)))
            if family.native.is_bias:
                module.has_relative_attention_bias = True
        if isinstance(module, GatedTable):
            del module.relpos_gate
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


def _build_layers(
    stack: Stack, family: Family, config: RelPosConfig
) -> tuple[RelPosLayer | None, list[tuple[nn.Module, RelPosLayer | None]]]:
    """The stack's shared module, and each attention's own (None: it uses the shared one)."""
    shared: RelPosLayer | None = None
    own: list[tuple[nn.Module, RelPosLayer | None]] = []
    for index, attention in enumerate(stack.attentions):
        if relpos_of(attention) is not None:
            continue
        active = config.layers is None or index in config.layers
        if config.share_layers and active:
            shared = shared or _build_layer(attention, family, config, active)
            own.append((attention, None))
        else:
            own.append((attention, _build_layer(attention, family, config, active)))
    return shared, own


def _build_layer(attention: nn.Module, family: Family, config: RelPosConfig, active: bool) -> RelPosLayer:
    like = _like(attention)
    with torch.device(like.device):
        layer = RelPosLayer(config, family.geometry(attention), active)
    return layer.to(like.dtype).train(attention.training)


def _like(module: nn.Module) -> torch.Tensor:
    """A tensor whose device and dtype new parameters of a module take; quantised weights are passed over."""
    parameters = list(module.parameters())
    for parameter in parameters:
        if parameter.is_floating_point():
            return parameter
    return torch.empty(0, device=parameters[0].device)


def _native_tables(model: PreTrainedModel, family: Family) -> Iterator[tuple[nn.Module, nn.Embedding]]:
    """Each native table that is still as the family made it, with the module that owns it."""
    owner_class = getattr(family.modeling, family.native.owner)
    for module in model.modules():
        if isinstance(module, owner_class):
            table = module._modules.get(family.native.table)
            if type(table) is nn.Embedding:
                yield module, table


def _change_native(owner: Any, table: Any, family: Family, config: RelPosConfig, keep_dropped: bool) -> None:
    if config.native == "drop":
        owner.__dict__[DROPPED] = (table,) if keep_dropped else ()
        if family.native.is_bias:
            delattr(owner, family.native.table)
            owner.has_relative_attention_bias = False
        else:
            setattr(owner, family.native.table, DroppedTable())
        return
    gated = config.native == "gate"
    if family.native.is_bias and not gated:
        return
    table.__class__ = GatedTable if family.native.is_bias else PositionTable
    table.relpos_gate = NativeGate(table.weight) if gated else None
