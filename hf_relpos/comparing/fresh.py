"""A fresh Python process that has this package and what is installed, and nothing else.

Python looks for modules in the folder it is started in before it looks at what is installed: a file `torch.py` or a
folder `triton` there would be taken for the real one. So the process is told not to (`-P`), and the package, which may
be found nowhere but in such a folder, is loaded from the place that this process has it from.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hf_relpos

_START = """
import importlib.util, runpy, sys
place, module = sys.argv[1:]
spec = importlib.util.spec_from_file_location("hf_relpos", f"{place}/__init__.py", submodule_search_locations=[place])
sys.modules["hf_relpos"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__")
"""


def run_fresh(module: str, given: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this package as a program, without a network, and wait for its end.

    Args:
        module: the module's name.
        given: what it reads from its standard input.
        folder: the folder it works in; paths given to it must be absolute.

    Returns:
        The process, with its exit status and what it wrote.
    """
    place = str(Path(hf_relpos.__file__).resolve().parent)
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return subprocess.run(
        [sys.executable, "-P", "-c", _START, place, module],
        input=given,
        text=True,
        encoding="utf-8",
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
