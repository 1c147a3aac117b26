"""Loading what a user names: a failure becomes one line that names the option and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hf_relpos.cli.errors import CommandError
from hf_relpos.errors import RelPosError
from hf_relpos.texts import is_missing_file

_LONGEST = 300  # characters of a reason: Transformers lists all classes there are


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
        if is_missing_file(source):
            raise CommandError(
                f"{option} {source} does not exist. Give a folder with {what}, or the id of one on the Hub."
            ) from error
        reasons = [error] if error.__cause__ is None else [error, error.__cause__]
        raise CommandError(
            f"{option} {source} cannot be loaded. Give a folder with {what}, or the id of one on the Hub. The reason "
            f"({type(error).__name__}): {' '.join(map(_in_one_line, reasons))}"
        ) from error


def _in_one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ..."
