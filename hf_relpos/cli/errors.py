"""What a command tells the user instead of a traceback."""

from __future__ import annotations

from hf_relpos.errors import RelPosError
from hf_relpos.installing import install_command


class CommandError(RelPosError):
    """The command cannot do what it was asked to: says what was given, what is allowed, and what to do."""


class CheckFailed(RelPosError):
    """The command ran, and what it promised does not hold."""


def extra_missing(package: str, purpose: str) -> CommandError:
    """The error for a package of the `demo` extra that is not installed."""
    return CommandError(
        f"{purpose} needs the package {package}, which is not installed. Install what the demo needs, in a checkout of "
        f"hf_relpos's repository, with: {install_command('demo')}"
    )
