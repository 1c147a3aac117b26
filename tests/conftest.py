"""Settings of the whole suite: no network, one thread per worker, the same random numbers in every test."""

import gc
import os

# Set before torch or a Hugging Face library is imported, and inherited by the processes that tests start.
os.environ.update(HF_HUB_OFFLINE="1", HF_EVALUATE_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pairwise
import pytest
import torch
import transformers

import hf_relpos.patching  # noqa: F401

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def little_to_look_through() -> None:
    """Patching asks the garbage collector who holds a config: not what was there before the file's first test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed Python, NumPy and torch, so that a test depends neither on its order nor on its worker."""
    transformers.set_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the pages are that tests with the mark ``browser`` look at."""
    parser.addoption("--pages", action="append", default=[], metavar="DIR", help="a folder with pages, for -m browser")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a browser, or the extras that notebooks need, unless ``-m`` names it."""
    for mark in ("browser", "notebooks"):
        if mark not in config.option.markexpr:
            items[:] = [item for item in items if item.get_closest_marker(mark) is None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with the mark ``pairs`` its rows; all the others of its grid only where ``-m`` names ``grid``."""
    for mark in metafunc.definition.iter_markers("pairs"):
        names, rows = pairwise.rows_of(mark, with_grid="grid" in metafunc.config.option.markexpr)
        metafunc.parametrize(names, rows, ids=pairwise.id_of)
