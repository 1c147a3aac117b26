"""The compiled kernel (`kernel.cpp`), and what it takes from PyTorch's own libraries when it runs."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from hf_relpos.installing import install_command

logger = logging.get_logger(__name__)

WINDOWS = sys.platform == "win32"

# The dot before `native` keeps Python from taking the file for one of its modules.
FILE = Path(__file__).with_name("kernel.native.dll" if WINDOWS else "kernel.native.so")

# Numbers that stand for dtypes, and the statuses that the kernel returns.
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
OUT_OF_MEMORY = 1

HOW_TO_GET = (
    "Installing hf_relpos compiles it where there is a C++ compiler (g++, clang++ or Visual Studio): get one, then "
    f"`{install_command()}` in a checkout of its repository"
)


# The record `Call` of kernel.cpp: sizes and rules, states, log-sums, tables, gate, threads and what PyTorch lends. Its
# numbers are packed one after the other: to fill a record of records takes as long as the attention of one query.
STATES, TABLES = 8, 5
RECORD = Struct(f"=11q2d2q {5 * STATES}q q {4 * TABLES}q 3q 5q")


def address(tensor: Tensor | None) -> int:
    """Where a tensor's first element is; zero for None."""
    return 0 if tensor is None else tensor.data_ptr()


def strided(tensor: Tensor | None) -> tuple[int, ...]:
    """The record `Strided` of a tensor ``[batch, heads, rows, columns]``, whose strides count elements."""
    return (0, 0, 0, 0, 0) if tensor is None else (tensor.data_ptr(), *tensor.stride())


def table(numbers: Tensor | None, gradient: Tensor | None) -> tuple[int, ...]:
    """The record `Table` of a contiguous ``[heads or 1, 2k + 1, ...]``, and where its gradient goes, if anywhere."""
    if numbers is None:
        return (0, 0, 0, 0)
    heads, rows, *_ = numbers.shape
    return (numbers.data_ptr(), address(gradient), (rows - 1) // 2, heads)


@dataclass(frozen=True)
class Kernel:
    """The two functions of the compiled kernel, and the addresses that end each record."""

    forward: Any
    backward: Any
    lent: dict[str, int]

    def run(self, function: Any, *call: float) -> None:
        """One pass, by as many threads as PyTorch uses. Python's lock is not held meanwhile.

        Args:
            function: ``forward`` or ``backward``.
            *call: the numbers of the record but the last five.

        Raises:
            MemoryError: if there is no memory for its blocks.
        """
        status = function(RECORD.pack(*call, torch.get_num_threads(), *self.lent.values()))
        if status == OUT_OF_MEMORY:
            raise MemoryError("The engine 'fused' could not allocate memory for its blocks of scores.")
        if status:
            raise RuntimeError(f"The kernel of the engine 'fused' returned status {status}, which it never should.")


@cache
def load() -> Kernel | str:
    """The kernel, loaded once per process; or, in words, why there is none and what to do: also in the log, once."""
    found = _find()
    if isinstance(found, Kernel):
        return found
    missing = f"{found}. {HOW_TO_GET}"
    logger.warning(
        "hf_relpos: the compiled kernel of the engine 'fused' is missing, so engine='auto' runs 'blockwise' (on short "
        "inputs 'eager'), which is slower: %s.",
        missing,
    )
    return missing


def _find() -> Kernel | str:
    """The kernel; or, in words, why there is none."""
    if not FILE.exists():
        return f"it was not compiled when hf_relpos was installed (there is no {FILE.name} in {FILE.parent})"
    try:
        library = ctypes.CDLL(str(FILE))
        library.hf_relpos_call_size.restype = ctypes.c_int64
        if library.hf_relpos_call_size() != RECORD.size:
            return f"{FILE} is of another release of hf_relpos"
        for function in (library.hf_relpos_forward, library.hf_relpos_backward):
            function.argtypes = [ctypes.c_char_p]
    except (OSError, AttributeError) as error:
        return f"{FILE} can't be loaded ({error})"
    return Kernel(library.hf_relpos_forward, library.hf_relpos_backward, lent_by_pytorch())


def lent_by_pytorch() -> dict[str, int]:
    """Addresses of the functions of PyTorch's libraries that the kernel calls; zero where they are not exported.

    A handle's search goes on in the libraries that it depends on, so BLAS and OpenMP are found under whatever name
    PyTorch brings them, and are the very ones that it uses.
    """
    name = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        library = None

    def find(*names: str) -> int:
        for name in names:
            function = getattr(library, name, None)
            if function is not None:
                return ctypes.cast(function, ctypes.c_void_p).value or 0
        return 0

    lent = {
        "run_parallel": find("GOMP_parallel"),
        "set_product_threads": find("MKL_Set_Num_Threads_Local", "openblas_set_num_threads_local"),
        "sgemm": find("sgemm_"),
        "dgemm": find("dgemm_"),
    }
    if not (lent["sgemm"] and lent["dgemm"]):
        logger.warning_once(
            "hf_relpos: this PyTorch exports no matrix products (sgemm_, dgemm_), so the engine 'fused' makes its own, "
            "which are slower."
        )
    if not lent["run_parallel"]:
        logger.warning_once(
            "hf_relpos: this PyTorch has no OpenMP that the engine 'fused' can use (GOMP_parallel), so it runs on one "
            "thread."
        )
    return lent
