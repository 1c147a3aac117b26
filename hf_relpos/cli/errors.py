"""What a command tells the user instead of a traceback."""

from __future__ import annotations

from hf_relpos.errors import RelPosError


class CommandError(RelPosError):
    """The command cannot do what it was asked to: says what was given, what is allowed, and what to do."""


class CheckFailed(RelPosError):
    """The command ran, and what it promised does not hold."""


def extra_missing(package: str, purpose: str) -> CommandError:
    """The error for a package of the `demo` extra that is not installed."""
    return CommandError(
        f"{purpose} needs the package {package}, which is not installed. "
        'Install what the demo needs with: pip install "hf_relpos[demo]"'
    )
