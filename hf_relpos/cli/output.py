"""Folders to write into: checked before anything is done, and there when they are complete.

Most commands take a new folder only; the demo also takes one that it made itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hf_relpos.cli.errors import CommandError

MARKER = ".made-by-hf-relpos-demo"


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written into. Writes nothing.

    Args:
        option: The option that names the folder.
        folder: The folder, which need not exist.

    Raises:
        CommandError: If it cannot.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise CommandError(f"{option} {folder}: {there} is a file. Give a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CommandError(
            f"{option} {folder}: nothing can be written into {there}. Give a folder where you may write."
        )


def check_new_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written into, or in which there is something. Writes nothing.

    Args:
        option: The option that names the folder.
        folder: The folder, which need not exist, but has a name: what is written beside it takes its place.

    Raises:
        CommandError: If it is one of these.
    """
    if folder.name in ("", ".."):
        raise CommandError(f"{option} {folder} is no name for a new folder. Give one, for example {folder / 'made'}.")
    check_folder(option, folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise CommandError(f"{option} {folder} is there already, with files in it. Give the name of a new folder.")


def put_in_place(made: Path, folder: Path) -> None:
    """Give a folder that was written beside it the name of a new or empty one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir():
        folder.rmdir()
    made.rename(folder)


@contextmanager
def written_whole(option: str, folder: Path) -> Iterator[Path]:
    """A folder to write into that takes its place, and its name, when everything is in it; or is gone.

    Args:
        option: The option that names the folder.
        folder: The folder, which :func:`check_new_folder` has passed.

    Raises:
        CommandError: If it cannot be written.
    """
    there = next(path for path in folder.absolute().parents if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=there) as beside:
            made = Path(beside) / folder.name
            made.mkdir()
            yield made
            put_in_place(made, folder)
    except (OSError, SafetensorError) as error:
        raise CommandError(
            f"{option} {folder}: it cannot be written ({' '.join(str(error).split())}). Nothing of it was left there."
        ) from error


def check_output(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written into, or that holds what somebody else has put there. Writes nothing.

    Args:
        option: The option that names the folder.
        folder: The folder, which need not exist.

    Raises:
        CommandError: If it is one of these.
    """
    check_folder(option, folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise CommandError(
            f"{option} {folder} is there already, with files in it, and the demo did not make it (it has no file "
            f"{MARKER}). Give the name of a new folder, or move this one away."
        )


def open_output(folder: Path, products: Iterable[str]) -> None:
    """Make a folder that was checked, mark it as the demo's, and take out the files of an earlier run.

    Args:
        folder: The folder.
        products: The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("`hf-relpos demo` made this folder, and writes over what it left here.\n", "utf-8")
    for name in products:
        (folder / name).unlink(missing_ok=True)
