"""The one truth about a patched model: its choices, what was added, and whether it still is what its config says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn
from transformers import PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError
from hf_relpos.families import Family
from hf_relpos.families.tables import NativeGate
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling.configs import RelPosConfigMixin
from hf_relpos.modeling.sharing import SHARED_FROM, relpos_of
from hf_relpos.modeling.stacks import stacks_of

# What wrappers put into the names of parameters, and take out again when they save.
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def is_patched(model: nn.Module) -> bool:
    """Whether a model, or a model inside it, has relative positions."""
    return any(is_patched_model(module) or isinstance(module, RelPosLayer) for module in model.modules())


def is_patched_model(module: nn.Module) -> bool:
    """Whether a module itself is a patched model, of a ``RelPos...`` class."""
    return isinstance(module, PreTrainedModel) and hasattr(type(module), "relpos_family")


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
            f"{strange[0]!r}, for which {in_words(choices_of(model))} has no place. Patch the model as it was patched "
            "then, or load them with from_pretrained."
        )


def choices_of(model: nn.Module) -> RelPosConfig | None:
    """The choices of a patched model, or of the one a wrapper holds; None if there is none."""
    for module in model.modules():
        config = getattr(module, "config", None)
        relpos = getattr(config, "relpos", None) if isinstance(config, RelPosConfigMixin) else None
        if relpos is not None:
            return RelPosConfig.of(relpos)
    return None


def in_words(config: RelPosConfig | None) -> str:
    """A patch, or that there is none, as part of a sentence."""
    return "no relative positions" if config is None else str(config)


def _clean(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


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
