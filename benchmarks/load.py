"""Other work on the machine: what a benchmark under load is measured beside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without end, while this is entered."""
    started = [subprocess.Popen([sys.executable, "-P", "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
