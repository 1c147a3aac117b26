"""How to install this package: said here, and quoted by cards, saved folders and errors. The README says the same.

No package index has it yet. A command that named it there would fail today, and some day install whatever somebody else
had published under that name. This file changes with the first release.
"""

from __future__ import annotations


def install_command(extra: str | None = None) -> str:
    """The command that installs the package, to be run in a checkout of its repository.

    Args:
        extra: one of the package's extras, to be installed with it.
    """
    return "pip install ." if extra is None else f'pip install ".[{extra}]"'


# For whoever has a saved model and lacks the package.
HOW_TO_INSTALL = (
    "No package index has hf_relpos yet: install it from a checkout of its repository "
    f"(`{install_command()}` there), or from a wheel built of it."
)
WITHOUT_INSTALLING = (
    "Where it cannot be installed, ask for a standalone copy of the model, which carries its code: "
    "`hf_relpos.save_standalone` makes one."
)
