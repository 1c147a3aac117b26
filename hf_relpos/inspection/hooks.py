"""Hooks that are there for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """While this lasts, each module's output goes through its hook, which may give another one in its place."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
