"""PEFT: what an adapter has to save of a patched model, and the refusal of an adapter where that has no place.

Nothing here imports PEFT on its own account. What PEFT has to know is told to it in the moment it is imported, by
whomever, before or after this package.
"""

from __future__ import annotations

import functools
import importlib.abc
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_relpos.config import RelPosConfig
from hf_relpos.configuration import TYPE_PREFIX, RelPosConfigMixin
from hf_relpos.errors import PatchStateError
from hf_relpos.families import FAMILIES

if TYPE_CHECKING:
    from torch import nn

# What the modules with added parameters are called: those of the attention layers, and the gate on a native table.
MODULES = ("relpos", "relpos_gate")

# What PEFT puts behind the path of a module that it saves whole.
_WRAPPED = re.compile(r"\.(original_module|modules_to_save\.[^.]+)$")

# How the entry of `modules_to_save` begins that names no module, but tells which patch the adapter was trained on.
PATCH_ENTRY = "relpos patch: "

# PEFT has no default targets for UMT5, whose modules are called as those of MT5.
_TARGETS_LIKE = {"umt5": "mt5"}


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
    patches = _patches_of(model)
    if not patches:
        raise PatchStateError(
            f"{type(model).__name__} is not patched, so there is nothing to save with an adapter. Call patch_model "
            "first, then make the adapter."
        )
    return _names_of_added(model) + [PATCH_ENTRY + json.dumps(patch.to_dict(), sort_keys=True) for patch in patches]


def _names_of_added(model: nn.Module) -> list[str]:
    """Names by which PEFT finds the added modules and no others: as short as possible."""
    from hf_relpos import wiring  # a patched model has imported it

    paths = list(dict.fromkeys(_WRAPPED.sub("", path) for path, _ in wiring.added_modules(model)))
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


def register() -> None:
    """Have PEFT know the patched models: now if it is imported already, else as soon as it is."""
    if "peft" in sys.modules:
        _introduce()
    if not any(type(finder).__qualname__ == _AfterImport.__qualname__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport("peft", _introduce))


def _introduce() -> None:
    """Give PEFT default targets for our model types, our check of what is put on a model, and a way to take it off."""
    from peft.tuners.tuners_utils import BaseTuner
    from peft.utils import constants

    for name, mapping in vars(constants).items():
        if re.fullmatch(r"TRANSFORMERS_MODELS_TO_\w+_MAPPING", name):
            for package in FAMILIES:
                like = package if package in mapping else _TARGETS_LIKE.get(package)
                if like in mapping:
                    mapping[TYPE_PREFIX + package] = mapping[like]
    if not hasattr(BaseTuner.inject_adapter, "relpos_checked"):
        BaseTuner.inject_adapter = _checked(BaseTuner.inject_adapter)
        BaseTuner._replace_module = _taking_whole_modules(BaseTuner._replace_module)


def _checked(inject_adapter: Callable[..., Any]) -> Callable[..., Any]:
    """PEFT's one way to put any adapter on a model, preceded by our check.

    PEFT drops what an adapter file has and the model has not, without a word. Only this tells that tables are lost.
    """

    @functools.wraps(inject_adapter)
    def checked(self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
        modules_to_save = getattr(self.peft_config[adapter_name], "modules_to_save", None)
        check_adapter(model, modules_to_save or ())
        return inject_adapter(self, model, adapter_name, *args, **kwargs)

    checked.relpos_checked = True  # type: ignore[attr-defined]
    return checked


def _taking_whole_modules(replace_module: Callable[..., None]) -> Callable[..., None]:
    """How PEFT puts a module in the place of its wrapper, for a copy of `modules_to_save` that has no weight itself.

    Such a module holds others, as `relpos` does, and is put back as it is. PEFT does that for LoRA and its kin; for
    most others it goes on to hand over the wrapper's `weight`, and stops half-way through the model.
    """
    from peft.utils import ModulesToSaveWrapper

    @functools.wraps(replace_module)
    def replaced(self: Any, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module) -> None:
        if isinstance(child, ModulesToSaveWrapper) and not hasattr(child, "weight"):
            setattr(parent, child_name, new_module)
        else:
            replace_module(self, parent, child_name, new_module, child)

    return replaced


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
    patches = _patches_of(model)
    if not patches:
        what = f"on a model patched with {_in_words(needed)}" if needed else f"with modules_to_save={named}"
        raise PatchStateError(
            f"This adapter was made {what}, but {type(model).__name__} is not patched: the adapter's relative tables "
            "would be lost. Load the patched model it was trained on, or call patch_model with the same choices on "
            "its base model, before putting the adapter on it."
        )
    if needed and set(map(_function_of, needed)) != set(map(_function_of, patches)):
        raise PatchStateError(
            f"This adapter was made on a model patched with {_in_words(needed)}, but {type(model).__name__} is "
            f"patched with {_in_words(patches)}. Call unpatch_model and patch_model with the adapter's choices first."
        )


def _patches_of(model: nn.Module) -> list[RelPosConfig]:
    """The choices of every patched model in a model, each once."""
    patches = []
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, RelPosConfigMixin) and config.relpos is not None:  # type: ignore[attr-defined]
            patch = RelPosConfig.of(config.relpos)  # type: ignore[attr-defined]
            if patch not in patches:
                patches.append(patch)
    return patches


def _function_of(patch: RelPosConfig) -> RelPosConfig:
    """The choices that decide what is computed: not how, and not from which values training starts."""
    schemes = [
        replace(scheme, **{field.name: field.default for field in fields(scheme) if field.name in ("init", "init_std")})
        for scheme in patch.scheme_configs
    ]
    return replace(patch, schemes=schemes, engine="auto")


def _in_words(patches: Sequence[RelPosConfig]) -> str:
    return " and ".join(map(str, patches))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Acts as soon as a package has been imported.

    Finds nothing itself: it asks the other finders, and adds the action to what their loader does.

    Args:
        package: its name.
        action: what to do; may import from the package.
    """

    def __init__(self, package: str, action: Callable[[], None]) -> None:
        self.package = package
        self.action = action

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the package is, if that is what is looked for; None for all others."""
        if name != self.package:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self.action)
        return spec


class _ActingLoader(importlib.abc.Loader):
    """Loads as another loader does, hands over to it, and acts.

    Args:
        loader: the other one.
        action: what to do when it is done.
    """

    def __init__(self, loader: Any, action: Callable[[], None]) -> None:
        self.loader = loader
        self.action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that the other loader creates."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then act."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.action()
