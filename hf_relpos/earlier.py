"""Module paths of earlier releases: imports of theirs, and the pickles they wrote, find what is elsewhere now."""

from __future__ import annotations

import importlib.abc
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

# For each module of 0.1.0 that is no longer there, the modules that have what was in it.
MOVED = {
    "hf_relpos.attention": (
        "hf_relpos.modeling.attention",
        "hf_relpos.modeling.mask",
        "hf_relpos.modeling.sharing",
    ),
    "hf_relpos.bundle": ("hf_relpos.checkpoints.bundle",),
    "hf_relpos.configuration": ("hf_relpos.modeling.configs", "hf_relpos.names"),
    "hf_relpos.hub": ("hf_relpos.checkpoints.saving",),
    "hf_relpos.peft": ("hf_relpos.checkpoints.adapters", "hf_relpos.compat.peft"),
    "hf_relpos.positions": ("hf_relpos.families.tables",),
    "hf_relpos.resuming": ("hf_relpos.checkpoints.resuming", "hf_relpos.modeling.state"),
    "hf_relpos.standalone": ("hf_relpos.checkpoints.standalone",),
    "hf_relpos.wiring": (
        "hf_relpos.modeling.wiring",
        "hf_relpos.modeling.held_configs",
        "hf_relpos.modeling.state",
        "hf_relpos.modeling.stacks",
    ),
}


def keep_paths() -> None:
    """Have Python's import find the modules of earlier releases (again, harmlessly, if called twice)."""
    if not any(type(finder).__qualname__ == _Earlier.__qualname__ for finder in sys.meta_path):
        sys.meta_path.append(_Earlier())


class _Earlier(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads those modules: each looks its names up where they are now, when they are asked for."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the module is, if it is one of them."""
        return spec_from_loader(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module what it needs to look its names up."""

        def look_up(name: str) -> Any:
            for place in MOVED[module.__name__]:
                if hasattr(import_module(place), name):
                    return getattr(import_module(place), name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__getattr__ = look_up  # type: ignore[method-assign]
