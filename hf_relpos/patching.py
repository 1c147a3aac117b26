"""The way in and the way out: ``patch_model``, ``unpatch_model``, and a report on what was done."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_relpos import wiring
from hf_relpos.config import RelPosConfig, RelPosLike
from hf_relpos.configuration import ATTENTION_NAME, CLASS_PREFIX, CONFIGS
from hf_relpos.errors import PatchStateError, UnsupportedModelError
from hf_relpos.families import FAMILIES, Family
from hf_relpos.layer import RelPosLayer
from hf_relpos.models import MODELS, RelPosModelMixin, patched_class
from hf_relpos.schemes import ClippedBias

logger = logging.get_logger(__name__)

Model = TypeVar("Model", bound=PreTrainedModel)


def patch_model(model: Model, relpos: RelPosLike) -> Model:
    """Give a pretrained model relative positions, in place.

    With tables that start at zero (the default) the model computes what it computed before, and learns from there.
    Its class becomes ``RelPos<Original>``, still a subclass of what it was.

    Args:
        model: a BERT, GPT-2, T5, MT5 or UMT5 model of Transformers, with any head. Patch before wrapping it (PEFT,
            DDP, ``torch.compile``, ``accelerator.prepare``) and before making the optimizer.
        relpos: a scheme config, a scheme's name, several of these, or a :class:`RelPosConfig`.

    Returns:
        The same object.

    Raises:
        UnsupportedModelError: (a ``TypeError``) if it is no such model; says what is supported, or what to do first.
        PatchStateError: (a ``ValueError``) if the model is patched already.
        NothingPatchedError: (a ``ValueError``) if there is no layer to patch.
        RelPosConfigError: (a ``ValueError``) for a wrong choice.

    Whatever is raised, the model is unchanged.
    """
    family = _patchable(model)
    config = RelPosConfig.of(relpos)
    prepared = _prepared(model, "Patch")
    wiring.attach(model, family, config, patched_class, keep_dropped=True)
    _undo_preparing(prepared)
    for model_config in own_configs(model, family.config_class):
        _swap_config(model_config, CONFIGS[family.config_class])
        model_config.relpos = config
    _warn_short_clip(config, family.trained_length(model.config))
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
    if not isinstance(model, RelPosModelMixin):
        raise PatchStateError(f"{type(model).__name__} is not patched. {_patched_inside(model)}".rstrip())
    family = model.relpos_family
    prepared = _prepared(model, "Unpatch")
    wiring.detach(model, family)
    _undo_preparing(prepared)
    for config in own_configs(model, CONFIGS[family.config_class]):
        _swap_config(config, family.config_class)
        del config.relpos
        if config._attn_implementation == ATTENTION_NAME:  # of a model that was loaded, and never had another
            config._attn_implementation = model.get_correct_attn_implementation(None)
        if config.architectures:
            config.architectures = [name.removeprefix(CLASS_PREFIX) for name in config.architectures]
    return model


def is_patched(model: nn.Module) -> bool:
    """Whether a model, or a model inside it, has relative positions."""
    return any(isinstance(module, (RelPosModelMixin, RelPosLayer)) for module in model.modules())


@dataclass(frozen=True)
class PatchReport:
    """What a patch did to a model. ``print`` it.

    Attributes:
        model: the model's class.
        base: the class it had.
        config: all the choices.
        layers: patched layers per stack, by the stack's path (empty for the model itself).
        shared: whether the layers of a stack share their parameters.
        added: number of parameters added.
        total: number of parameters in all.
        trained_length: number of absolute positions it was pretrained with; None if it had none.
    """

    model: str
    base: str
    config: RelPosConfig
    layers: dict[str, int]
    added: int
    total: int
    trained_length: int | None

    @property
    def num_layers(self) -> int:
        """Patched layers in all."""
        return sum(self.layers.values())

    def __str__(self) -> str:
        config = self.config
        stacks = ", ".join(f"{count} in {path or 'the model'}" for path, count in self.layers.items())
        rows = {
            "schemes": " + ".join(map(str, config.scheme_configs)),
            "layers": f"{self.num_layers} patched ({stacks})" + (", shared per stack" if config.share_layers else ""),
            "parameters": f"{self.added:,} added to {self.total - self.added:,}",
            "native positions": _native_in_words(config.native, self.trained_length),
            "gate": config.gate,
            "window": "none" if config.window is None else f"{config.window} tokens to each side",
            "engine": config.engine,
        }
        width = max(map(len, rows))
        lines = [f"  {name:<{width}}  {value}" for name, value in rows.items()]
        return "\n".join([f"{self.model} (was {self.base})", *lines])


def patch_report(model: PreTrainedModel) -> PatchReport:
    """What was done to a patched model.

    Raises:
        PatchStateError: if the model is not patched.
    """
    if not isinstance(model, RelPosModelMixin):
        raise PatchStateError(
            f"{type(model).__name__} is not patched, so there is nothing to report. {_patched_inside(model)}".rstrip()
        )
    family = model.relpos_family
    config = wiring.check_config(model)
    layers = {}
    for stack in wiring.stacks_of(model, family):
        owned = [wiring.relpos_of(attention) for attention in stack.attentions]
        layers[stack.path] = sum(layer is not None and len(layer.schemes) > 0 for layer in owned)
    return PatchReport(
        model=type(model).__name__,
        base=model.relpos_original.__name__,
        config=config,
        layers=layers,
        added=sum(parameter.numel() for _, _, parameter in wiring.added_parameters(model)),
        total=sum(parameter.numel() for parameter in model.parameters()),
        trained_length=family.trained_length(model.config),
    )


def _patchable(model: Any) -> Family:
    """The family of a model that can be patched as it is."""
    wrapper = _wrapper(model)
    if wrapper is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a model already wrapped by {wrapper}. Patch the model first, then wrap it."
        )
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"patch_model takes a model of Transformers, but was given {type(model).__name__}. {_supported()} "
            f"{_hint(model)}".rstrip()
        )
    if is_patched(model):
        what = type(model).__name__ if isinstance(model, RelPosModelMixin) else f"A model inside {type(model).__name__}"
        raise PatchStateError(f"{what} is already patched. To change its relative positions, call unpatch_model first.")
    if type(model) not in MODELS:
        raise UnsupportedModelError(f"{type(model).__name__} is not supported. {_supported()} {_hint(model)}".rstrip())
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has parameters that are not in memory (offloaded, or on the meta device). Patch "
            "it before dispatching it, or load it with its RelPos class: from_pretrained(..., relpos=...)."
        )
    family = MODELS[type(model)].relpos_family
    if type(model.config) is not family.config_class:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a {type(model.config).__name__} for its config, but must have a "
            f"{family.config_class.__name__} itself: a patched model is saved with a config class of its own."
        )
    return family


def _prepared(model: PreTrainedModel, verb: str) -> list[nn.Module]:
    """The modules that change their class, and that accelerate has given a `forward` of their own.

    Raises:
        UnsupportedModelError: if another tool has: such a `forward` would keep calling the one of the old class.
    """
    prepared = []
    for path, module in model.named_modules():
        changes = patched_class(type(module)) is not None or hasattr(type(module), "relpos_original")
        if not changes or "forward" not in vars(module):
            continue
        if not _adds_only_precision(module):
            raise UnsupportedModelError(
                f"{type(model).__name__} has its forward replaced at {path or 'the model itself'!r} (by a device map, "
                f"offloading, or a tool like them), and it would go on calling that of the old class. {verb} the model "
                "first. Or save it with save_pretrained, load it again, and use that one; or take the replacement off "
                f"(`del {_expression(path)}.forward`, if nothing else is to be undone)."
            )
        prepared.append(module)
    return prepared


def _adds_only_precision(module: nn.Module) -> bool:
    """Whether a module's own `forward` is its class's, but for the mixed precision that accelerate puts around it.

    `accelerator.prepare` does so, the Trainer calls it (``bf16=True``), and neither takes it off after training.
    """
    from accelerate.utils.operations import ConvertOutputsToFp32

    forward = vars(module)["forward"]
    marked = not vars(module).keys().isdisjoint(("_original_forward", "_is_accelerate_prepared"))
    if not marked or getattr(forward, "__self__", None) is not module:
        return False
    function = forward.__func__
    while isinstance(getattr(function, "__wrapped__", None), ConvertOutputsToFp32):
        autocast = function.__wrapped__.model_forward
        function = getattr(autocast, "__wrapped__", None)
    # `unwrap_model(keep_fp32_wrapper=False)` leaves what is inside the decorators of the class's function too.
    own: Any = type(module).forward
    while own is not function and hasattr(own, "__wrapped__"):
        own = own.__wrapped__
    return own is function


def _undo_preparing(modules: list[nn.Module]) -> None:
    """Take accelerate's mixed precision off, so that the next `accelerator.prepare` puts it on again."""
    for module in modules:
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            vars(module).pop(name, None)
    if modules:
        logger.warning_once(
            "accelerate (which the Trainer uses) had put mixed precision around the model's forward, that of the class "
            "the model had before. It was taken off. Prepare the model again to train on; a new Trainer does so."
        )


def _wrapper(model: Any) -> str | None:
    """What a model is wrapped by, in words, or None."""
    module = type(model).__module__
    if module.startswith("peft."):
        return "PEFT"
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "data parallelism"
    if module.startswith("torch.distributed."):
        return type(model).__name__
    if module.startswith("torch._dynamo.") or getattr(model, "_compiled_call_impl", None) is not None:
        return "torch.compile"
    return None


def _supported() -> str:
    names = ", ".join(family.config.removesuffix("Config") for family in FAMILIES.values())
    return f"Supported are the models of these families, with any head: {names}."


def _hint(model: Any) -> str:
    """Where inside an unsupported model to look instead, or nothing."""
    return _outermost(model, lambda module: type(module) in MODELS)


def _patched_inside(model: Any) -> str:
    """Where inside a model the patched ones are, or nothing."""
    return _outermost(model, lambda module: isinstance(module, RelPosModelMixin))


def _outermost(model: Any, wanted: Callable[[nn.Module], bool]) -> str:
    children = model.named_modules() if isinstance(model, nn.Module) else ()
    inner = [path for path, module in children if path and wanted(module)]
    outermost = [path for path in inner if not any(path.startswith(other + ".") for other in inner)]
    if not outermost:
        return ""
    return "It contains models to call this on, one by one: " + ", ".join(map(_expression, outermost)) + "."


def _expression(path: str) -> str:
    """A module's path as a user writes it: ``model[0].auto_model``."""
    return "model" + "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in path.split(".") if name)


def own_configs(model: PreTrainedModel, config_class: type) -> list[Any]:
    """Every config object of a class that the model's modules hold, once each, and nobody else's.

    A config may serve another model as well. Then this model gets a copy, and the other one stays as it is. What
    contains the model, or holds its config within another config (an encoder-decoder), follows the change.
    """
    holders: dict[int, list[nn.Module]] = {}
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if type(config) is config_class:
            holders.setdefault(id(config), []).append(module)
            configs[id(config)] = config
    own = []
    for key, config in configs.items():
        if _held_elsewhere(config, model):
            config = copy.deepcopy(config)
            for module in holders[key]:
                module.config = config
        own.append(config)
    return own


def _held_elsewhere(config: Any, model: PreTrainedModel) -> bool:
    """Whether a module that neither is in the model nor contains it holds this config object."""
    inside = {id(vars(module)) for module in model.modules()}
    for attributes in gc.get_referrers(config):
        if not isinstance(attributes, dict) or id(attributes) in inside or "_modules" not in attributes:
            continue
        holders = [holder for holder in gc.get_referrers(attributes) if isinstance(holder, nn.Module)]
        if any(all(module is not model for module in holder.modules()) for holder in holders):
            return True
    return False


def _swap_config(config: Any, config_class: type) -> None:
    """Give a config another class, and with it that class's model type, which a loaded config also holds itself."""
    config.__class__ = config_class
    config.__dict__.pop("model_type", None)


def _native_in_words(native: str, trained_length: int | None) -> str:
    what = "the bias it was pretrained with" if trained_length is None else "absolute positions"
    bound = "" if trained_length is None else f", at most {trained_length} tokens"
    return {
        "keep": f"kept: {what}{bound}",
        "gate": f"gated: {what} times a learned factor{bound}",
        "drop": f"dropped: {what}; inputs may have any length",
    }[native]


def _warn_short_clip(config: RelPosConfig, trained_length: int | None) -> None:
    for scheme in config.scheme_configs:
        if isinstance(scheme, ClippedBias) and trained_length is not None and scheme.max_distance < trained_length / 2:
            logger.warning_once(
                f"ClippedBias(max_distance={scheme.max_distance}) on a model trained with {trained_length} positions: "
                f"keys more than {scheme.max_distance} tokens away cannot be told apart. Consider "
                f"max_distance={trained_length // 2} or more, or T5Bias, whose buckets widen with distance."
            )
