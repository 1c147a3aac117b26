"""Loading what a user names: a failure becomes one line that names the option and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hf_relpos.cli.errors import CommandError
from hf_relpos.errors import RelPosError

_LONGEST = 300


@contextmanager
def loading(option: str, source: str, what: str = "a model and its tokenizer") -> Iterator[None]:
    """Load something from a folder or the Hub.

    Args:
        option: The option that names it.
        source: The folder, or the id on the Hub.
        what: What it should hold.

    Raises:
        CommandError: If it cannot be loaded, whatever Transformers or `datasets` raise. Errors of this package pass.
    """
    try:
        yield
    except RelPosError:
        raise
    except Exception as error:
        raise CommandError(
            f"{option} {source} cannot be loaded. Give a folder with {what}, or the id of one on the Hub. The reason "
            f"({type(error).__name__}): {_first_line(error)}"
            + (f" {_first_line(error.__cause__)}" if error.__cause__ else "")
        ) from error


def _first_line(error: BaseException) -> str:
    """The line that says what is wrong; others have lists of all there is, or advice for other cases."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["nothing is said"]
    return lines[0] if len(lines[0]) <= _LONGEST else f"{lines[0][:_LONGEST]} ..."
