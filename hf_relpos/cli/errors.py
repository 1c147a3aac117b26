"""What a program tells the user instead of a traceback, and the status it ends with."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hf_relpos.errors import RelPosError
from hf_relpos.installing import install_command

INTERRUPTED = 130  # what shells report of a program that Ctrl-C has ended


class CommandError(RelPosError, ValueError):
    """The program cannot do what it was asked to: says what was given, what is allowed, and what to do."""


class CheckFailed(RelPosError):
    """The command ran, and what it promised does not hold."""


def exit_status(program: str, run: Callable[[], Any], options: Mapping[str, str] | None = None) -> int:
    """Run a program's function; what it raises on purpose, and Ctrl-C, become a line and an exit status.

    A function that leaves something behind when it is interrupted raises the ``KeyboardInterrupt`` again, with words.

    Args:
        program: What the line begins with.
        run: The function.
        options: What the user gives by options: the name that an argument of Python has, to that of the option. Errors
            of functions have the one, in backticks; the line has the other.

    Returns:
        0, 1 if a check failed, 2 if the program could not do what it was asked to, 130 if it was interrupted.
    """
    try:
        run()
        return 0
    except CheckFailed as error:
        status, said = 1, f"CHECK FAILED: {error}"
    except RelPosError as error:
        named = re.sub(r"`(\w+)`", lambda name: (options or {}).get(name[1], name[0]), str(error))
        status, said = 2, f"error: {named}"
    except KeyboardInterrupt as stop:
        status, said = INTERRUPTED, f"interrupted. {stop}".rstrip()
    # Progress bars write a last time when they go, with the frames that the error held: before the line, not after it.
    gc.collect()
    print(f"\n{program}: {said}", file=sys.stderr)
    return status


def extra_missing(package: str, purpose: str) -> CommandError:
    """The error for a package of the `demo` extra that is not installed."""
    return CommandError(
        f"{purpose} needs the package {package}, which is not installed. Install what the demo needs, in a checkout of "
        f"hf_relpos's repository, with: {install_command('demo')}"
    )
