"""The compiled kernel (`kernel.cpp`), and what it takes from PyTorch's own libraries when it runs."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
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


class Strided(ctypes.Structure):
    """A tensor ``[batch, heads, rows, columns]``; strides count elements."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "head", "row", "column")),
    ]  # fmt: skip

    @classmethod
    def of(cls, tensor: Tensor | None) -> Strided:
        """The record of a tensor; an empty one for None."""
        return cls() if tensor is None else cls(tensor.data_ptr(), *tensor.stride())


class Table(ctypes.Structure):
    """A contiguous table over offsets, ``[heads or 1, 2k + 1, ...]``, and where its gradient goes, if anywhere."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("gradient", ctypes.c_void_p), ("horizon", ctypes.c_int64), ("heads", ctypes.c_int64)
    ]  # fmt: skip

    @classmethod
    def of(cls, table: Tensor | None, gradient: Tensor | None = None) -> Table:
        """The record of a table; an empty one for None."""
        if table is None:
            return cls()
        return cls(table.data_ptr(), address(gradient), (table.shape[1] - 1) // 2, table.shape[0])


class Call(ctypes.Structure):
    """Everything the kernel is told; see the record of the same name in ``kernel.cpp``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "dtype", "batch", "heads", "key_heads", "queries", "keys", "head_dim", "value_dim",
            "query_offset", "causal", "window",
        )),
        ("scale", ctypes.c_double), ("dropout", ctypes.c_double), ("seed", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        *((name, Strided) for name in (
            "query", "key", "value", "output",
            "output_gradient", "query_gradient", "key_gradient", "value_gradient",
        )),
        ("log_sums", ctypes.c_void_p),
        *((name, Table) for name in ("bias", "native_bias", "query_table", "key_table", "value_table")),
        ("gate", ctypes.c_void_p), ("gate_gradient", ctypes.c_void_p), ("gate_batch", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("run_parallel", "set_product_threads", "sgemm", "dgemm")),
    ]  # fmt: skip


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's first element is; None for None."""
    return None if tensor is None else tensor.data_ptr()


@dataclass(frozen=True)
class Kernel:
    """The two functions of the compiled kernel, and the addresses that it is given with each call."""

    forward: Any
    backward: Any
    lent: dict[str, int | None] = field(default_factory=dict)

    def run(self, function: Any, call: Call) -> None:
        """One pass, by as many threads as PyTorch uses. Python's lock is not held meanwhile.

        Raises:
            MemoryError: if there is no memory for its blocks.
        """
        for name, lent in self.lent.items():
            setattr(call, name, lent)
        call.threads = torch.get_num_threads()
        status = function(ctypes.byref(call))
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
        if library.hf_relpos_call_size() != ctypes.sizeof(Call):
            return f"{FILE} is of another release of hf_relpos"
    except (OSError, AttributeError) as error:
        return f"{FILE} can't be loaded ({error})"
    return Kernel(library.hf_relpos_forward, library.hf_relpos_backward, lent_by_pytorch())


def lent_by_pytorch() -> dict[str, int | None]:
    """Addresses of the functions of PyTorch's libraries that the kernel calls; None where they are not exported.

    A handle's search goes on in the libraries that it depends on, so BLAS and OpenMP are found under whatever name
    PyTorch brings them, and are the very ones that it uses.
    """
    name = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        library = None

    def find(*names: str) -> int | None:
        for name in names:
            function = getattr(library, name, None)
            if function is not None:
                return ctypes.cast(function, ctypes.c_void_p).value
        return None

    lent = {
        "sgemm": find("sgemm_"),
        "dgemm": find("dgemm_"),
        "run_parallel": find("GOMP_parallel"),
        "set_product_threads": find("MKL_Set_Num_Threads_Local", "openblas_set_num_threads_local"),
    }
    if lent["sgemm"] is None or lent["dgemm"] is None:
        logger.warning_once(
            "hf_relpos: this PyTorch exports no matrix products (sgemm_, dgemm_), so the engine 'fused' makes its own, "
            "which are slower."
        )
    if lent["run_parallel"] is None:
        logger.warning_once(
            "hf_relpos: this PyTorch has no OpenMP that the engine 'fused' can use (GOMP_parallel), so it runs on one "
            "thread."
        )
    return lent
