"""PEFT: default targets for patched models, a check before an adapter goes on a model, and a way for it to come off.

Nothing here imports PEFT on its own account. What PEFT has to know is told to it in the moment it is imported, by
whomever, before or after this package.
"""

from __future__ import annotations

import functools
import importlib.abc
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

from hf_relpos.names import TYPE_PREFIX

# Refuses an adapter, with these `modules_to_save`, that has no place in a model.
Check = Callable[[nn.Module, Iterable[str]], None]

# Refuses a model that cannot be run with several adapters in one batch.
CheckMixed = Callable[[nn.Module], None]

# For each model type, the one whose default targets its patched models have.
Types = Callable[[], Mapping[str, str]]


_introduction: Callable[[], None] | None = None


def register(types: Types, check: Check, check_mixed: CheckMixed) -> None:
    """Have PEFT know the patched models: now if it is imported already, else as soon as it is.

    Args:
        types: the model types there are.
        check: called with a model, and an adapter's ``modules_to_save``, before the adapter is put on the model.
        check_mixed: called with a model before it is run with a batch of several adapters (``adapter_names``).
    """
    global _introduction
    _introduction = functools.partial(_introduce, types, check, check_mixed)
    introduce()
    if not any(type(finder).__qualname__ == _AfterImport.__qualname__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport("peft", introduce))


def introduce() -> None:
    """Tell PEFT what it has to know, if it is imported; again when there are more model types than before."""
    if "peft" in sys.modules and _introduction is not None:
        _introduction()


def _introduce(types: Types, check: Check, check_mixed: CheckMixed) -> None:
    """Give PEFT default targets for our model types, our checks, and a way to take an adapter off."""
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner
    from peft.utils import constants

    for name, mapping in vars(constants).items():
        if re.fullmatch(r"TRANSFORMERS_MODELS_TO_\w+_MAPPING", name):
            for model_type, alike in types().items():
                like = model_type if model_type in mapping else alike
                if like in mapping:
                    mapping[TYPE_PREFIX + model_type] = mapping[like]
    if not hasattr(BaseTuner.inject_adapter, "relpos_checked"):
        BaseTuner.inject_adapter = _checked(BaseTuner.inject_adapter, check)
        BaseTuner._replace_module = _taking_whole_modules(BaseTuner._replace_module)
        PeftModel._enable_peft_forward_hooks = _checked_mixed(PeftModel._enable_peft_forward_hooks, check_mixed)


def _checked(inject_adapter: Callable[..., Any], check: Check) -> Callable[..., Any]:
    """PEFT's one way to put any adapter on a model, preceded by our check.

    PEFT drops what an adapter file has and the model has not, without a word. Only this tells that tables are lost.
    """

    @functools.wraps(inject_adapter)
    def checked(self: Any, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
        modules_to_save = getattr(self.peft_config[adapter_name], "modules_to_save", None)
        check(model, modules_to_save or ())
        return inject_adapter(self, model, adapter_name, *args, **kwargs)

    checked.relpos_checked = True  # type: ignore[attr-defined]
    return checked


def _checked_mixed(enable_hooks: Callable[..., Any], check_mixed: CheckMixed) -> Callable[..., Any]:
    """What PEFT does to a model for the length of a forward pass or `generate`, preceded by our check.

    It has to come before: the hooks that PEFT puts into the model for a mixed batch stay there if the pass fails.
    """

    @functools.wraps(enable_hooks)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("adapter_names") is not None:
            check_mixed(self)
        return enable_hooks(self, *args, **kwargs)

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
