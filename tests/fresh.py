"""Code in a process of its own that has imported nothing of ours, nor any family's modelling code.

It is forked from one that has imported torch and Transformers, which take seconds that a test need not pay again.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

SECONDS = 300  # more than any needs

# Windows cannot fork: there each process imports all.
_context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
if sys.platform != "win32":
    _context.set_forkserver_preload(["torch", "transformers.modeling_utils"])


def run(code: str, *arguments: str, folder: Path | None = None, paths: Sequence[Path] = ()) -> str:
    """What the code prints; its exception, as a RuntimeError.

    Args:
        code: may be indented as a whole.
        arguments: its ``sys.argv[1:]``.
        folder: where it runs.
        paths: where it finds modules, before all others.
    """
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(
        target=_run, args=(theirs, textwrap.dedent(code), arguments, folder and str(folder), list(map(str, paths)))
    )
    process.start()
    theirs.close()
    try:
        error, said = ours.recv() if ours.poll(SECONDS) else (f"not finished within {SECONDS} s", "")
    except EOFError:
        process.join()
        error, said = f"ended with {process.exitcode}", ""
    finally:
        process.kill()
        process.join()
    if error:
        raise RuntimeError(error[-3000:])
    return said


def _run(answer: Connection, code: str, arguments: Sequence[str], folder: str | None, paths: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    sys.path[:0] = paths
    if folder:
        os.chdir(folder)
    error, said = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, "<code in a fresh process>", "exec"), {"__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    answer.send((error, said.getvalue()))
