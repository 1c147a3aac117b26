"""What numbers were measured with: versions, and the kind of machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

from hf_relpos.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of this package, of Python, and of the packages that the numbers depend on."""
    found = {"hf_relpos": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def hardware() -> dict[str, Any]:
    """The kind of machine: nothing that tells one machine from another of its kind."""
    summary: dict[str, Any] = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": "cpu",
    }
    if torch.cuda.is_available():
        summary["device"] = torch.cuda.get_device_name()
    return summary
