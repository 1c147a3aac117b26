"""All or nothing: modules that a failure half-way leaves as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

# Where a module keeps what it consists of. All else in it is an attribute of its own.
_CONTENTS = ("_modules", "_parameters", "_buffers")


@contextmanager
def unchanged_on_error(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Bring modules back to what they are now if anything is raised inside: class, attributes, children, parameters.

    Nothing is copied: values of tensors, and the insides of other objects, are not looked after.

    Args:
        modules: all that may be changed, each for itself.
    """
    before = [
        (module, type(module), dict(vars(module)), {name: dict(vars(module)[name]) for name in _CONTENTS})
        for module in modules
    ]
    try:
        yield
    except BaseException:
        for module, module_class, attributes, contents in before:
            module.__class__ = module_class
            vars(module).clear()
            vars(module).update(attributes)
            for name, entries in contents.items():
                vars(module)[name].clear()
                vars(module)[name].update(entries)
        raise
