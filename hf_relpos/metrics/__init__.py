"""The few `evaluate` metrics that the demo and the examples need, as local modules.

`evaluate.load("accuracy")` downloads a script from the Hub. This folder holds the same kind of script, so
that a metric can be had without a network in two ways:

    metric = load_metric("accuracy")                   # in memory, writes nothing
    metric = evaluate.load(metric_path("accuracy"))    # the usual way; copies the script below HF_HOME
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_relpos.installing import install_command

if TYPE_CHECKING:
    import evaluate

METRICS = ("accuracy", "f1")


def metric_path(name: str) -> str:
    """Path of a local metric script, for `evaluate.load(path)`.

    Args:
        name: One of `METRICS`.

    Returns:
        The path of the folder that holds the script.

    Raises:
        ValueError: If there is no such metric.
    """
    if name not in METRICS:
        raise ValueError(f"No local metric is called {name!r}. Available: {', '.join(METRICS)}.")
    return str(Path(__file__).resolve().parent / name)


def load_metric(name: str, **kwargs: Any) -> evaluate.Metric:
    """A ready metric that keeps what it is given in memory: no download, no cache folder, nothing written.

    Args:
        name: One of `METRICS`.
        **kwargs: Passed to the metric's class (`experiment_id`, `seed`, ...).

    Returns:
        The `evaluate.Metric`; call `compute(predictions=..., references=...)`.

    Raises:
        ValueError: If there is no such metric.
        ModuleNotFoundError: If `evaluate` or scikit-learn is not installed.
    """
    metric_path(name)
    try:
        module = importlib.import_module(f"{__name__}.{name}.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The metric {name!r} needs the module {error.name!r}, which is not installed. Install it, "
            f"in a checkout of hf_relpos's repository, with: {install_command('demo')}",
            name=error.name,
        ) from error
    # evaluate creates its cache folder even for a metric that lives in memory: give it one that goes away.
    with tempfile.TemporaryDirectory(prefix="hf_relpos_metric_") as folder:
        return module.METRIC(keep_in_memory=True, cache_dir=folder, **kwargs)
