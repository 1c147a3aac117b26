"""The engine `fused` on CUDA without a GPU: interpreted, compiled ahead of time, and as it is chosen and refused."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_relpos.engines import attend, choose, fused
from hf_relpos.engines.cuda import fused as cuda
from hf_relpos.engines.engine import Case
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install -e '.[triton]'"
)


@needs_triton
@pytest.mark.slow
def test_the_kernels_compute_what_eager_computes_in_tritons_interpreter():
    """In a process of its own, since Triton decides for a whole process whether it interprets."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/interpreted.py"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# Compiled ahead of time

KERNELS = ("forward", "backward_queries", "backward_keys")
CAPABILITIES = (80, 90)
# The most bytes of memory that a block's threads may share, and of registers that each may put aside.
SHARED = {80: 163 * 1024, 90: 227 * 1024}
SPILLED = {80: 448, 90: 128}

CASES: dict[str, dict[str, Any]] = {
    "bias": {"names": ("bias",), "k": 128},
    "vectors": {"names": ("query", "value"), "k": 16},
    "causal bias": {"names": ("bias",), "k": 128, "causal": True},
    "causal vectors": {"names": ("query", "value"), "k": 16, "causal": True},
    "bias, heads of 128": {"names": ("bias",), "k": 128, "dim": 128},
    "vectors, heads of 128": {"names": ("query", "value"), "k": 16, "dim": 128},
    "bias in float32": {"names": ("bias",), "k": 128, "dtype": torch.float32},
    "vectors in float32": {"names": ("query", "value"), "k": 16, "dtype": torch.float32},
    "vectors in float16 with a window and dropout": {
        "names": ("query", "value"), "k": 16, "dtype": torch.float16, "window": 512, "dropout": 0.1
    },
}  # fmt: skip
SOME = [(kernel, capability, "vectors") for kernel in KERNELS for capability in CAPABILITIES]
SOME += [("backward_queries", capability, "bias") for capability in CAPABILITIES]
ALL = [(kernel, capability, name) for name in CASES for kernel in KERNELS for capability in CAPABILITIES]


@cache
def launches(name: str) -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Of each kernel that a case runs: itself, and its arguments and options by name."""
    seen: dict[str, Any] = {}

    class Recorded(cuda.Call):
        def run(self, kernel: Any, length: int, tensors: Any, numbers: Any, **options: Any) -> None:
            given = [self.states[0] if tensor is None else tensor for tensor in tensors]
            values = (*self.states, *given, *self.strides, *numbers)
            options |= self.options
            names = [argument for argument in kernel.arg_names if argument not in options]
            seen[kernel.__name__] = kernel, dict(zip(names, values, strict=True)), options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "Call", Recorded)
        run(**CASES[name])
    return seen


def run(
    names: tuple[str, ...],
    k: int,
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    dropout: float = 0.0,
    **rules: Any,
) -> None:
    """Both passes of attention with padding; sequences of a BERT."""
    batch, heads, length = 2, 12, 128
    states = [torch.zeros(batch, length, heads, dim, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
    tables = {name: torch.zeros(heads, 2 * k + 1, *[dim] * (name != "bias"), requires_grad=True) for name in names}
    mask = AttentionMask(length, length, padding=torch.ones(batch, length, dtype=torch.bool), **rules)
    output, _ = cuda.attend(*states, RelativeTerms(**tables), mask, scale=0.125, dropout=dropout)
    output.sum().backward()


def compiled(kernel: str, capability: int, name: str) -> Any:
    """As the launcher compiles it, but for a GPU that need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, arguments, options = launches(name)[kernel]
    options = dict(options)
    how = {option: options.pop(option) for option in ("num_warps", "num_stages")}
    types = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.uint8: "u8",
        torch.int64: "i64",
    }
    signature, known = {}, {}
    for place, argument in enumerate(function.arg_names):
        value = arguments.get(argument)
        if argument in options:
            signature[argument] = "constexpr"
        elif isinstance(value, Tensor):
            signature[argument] = "*" + types[value.dtype]
            known[place,] = [["tt.divisibility", 16]]
        else:
            signature[argument] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and not function.params[place].do_not_specialize:
                known[place,] = [["tt.divisibility", 16]]
    constants = {(function.arg_names.index(argument),): value for argument, value in options.items()}
    source = ASTSource(function, signature, constants, known)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=how)


def spilled(cubin: bytes, tmp_path: Path) -> int:
    """Bytes that each thread puts aside."""
    import triton

    (tmp_path / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run(
        [tool, "--dump-resource-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    (stack,) = re.findall(r"STACK:(\d+)", said)
    return int(stack)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Compile all where ``-m`` names ``grid``, else those that are most likely to grow too large."""
    if "capability" in metafunc.fixturenames:
        rows: list[Any] = list(SOME)
        if "grid" in metafunc.config.option.markexpr:
            rows += [pytest.param(*row, marks=pytest.mark.grid) for row in ALL if row not in SOME]
        metafunc.parametrize(("kernel", "capability", "name"), rows)


@needs_triton
def test_kernels_use_matrix_instructions_and_no_atomics_and_fit(kernel, capability, name, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(kernel, capability, name)
    code = made.asm["ptx"]
    wide = capability >= 90 and launches(name)[kernel][2]["BLOCK"] == cuda.BLOCK
    assert ("wgmma.mma_async" if wide else "mma.sync") in code
    assert not re.search(r"\b(atom|red)\.", code)
    assert made.metadata.shared <= SHARED[capability]
    assert spilled(made.asm["cubin"], tmp_path) <= SPILLED[capability]


# Chosen and refused


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """As if the CPU were a GPU whose kernels are right; the list tells of which kinds that was asked."""
    asked: list[Any] = []
    monkeypatch.setitem(fused.HARDWARE, "cpu", cuda.ENGINE)
    monkeypatch.setattr(cuda, "HAS_TRITON", True)
    monkeypatch.setattr(cuda, "largest_error", lambda *kind: asked.append(kind) or 0.0)
    cuda.failure.cache_clear()
    yield asked
    cuda.failure.cache_clear()


def case(
    *names: str, k: int = 3, dim: int = 16, queries: int = 600, dtype: torch.dtype = torch.bfloat16,
    learns: bool = True, dropout: float = 0.0, **mask: Any,
) -> Case:  # fmt: skip
    """As many keys as queries, and the terms of these names."""
    states = torch.empty(1, 1, queries, dim, dtype=dtype)
    shapes = {"bias": (1, 2 * k + 1), "gate": (1, 1, queries)}
    tables = {name: torch.zeros(shapes.get(name, (1, 2 * k + 1, dim)), requires_grad=learns) for name in names}
    return Case(states, states, states, RelativeTerms(**tables), AttentionMask(queries, queries, **mask), dropout)


TAKEN: dict[str, Case] = {
    "a bias": case("bias"),
    "vectors with a gate by tokens": case("bias", "query", "value", "gate", k=256),
    "a wide bias that does not learn": case("bias", k=20_000, learns=False),
    "dropout": case("query", dropout=0.1),
    "float32 in a causal window": case("value", dtype=torch.float32, causal=True, window=9),
    "heads of 128": case("query", dim=128, dtype=torch.float16),
}


@pytest.mark.parametrize("name", TAKEN)
def test_auto_takes_what_the_kernels_take(name: str, gpu: list[Any]):
    assert choose("auto", TAKEN[name]) == "fused"


REFUSED: dict[str, tuple[Case, str]] = {
    "float64": (case("bias", dtype=torch.float64), "torch.float64 on CUDA"),
    "large heads": (case("bias", dim=160), "heads of more than 128 numbers"),
    "vectors that meet the key": (case("key"), "vectors that meet the key"),
    "far vectors": (case("query", k=300), "over more than 256 offsets"),
    "a far bias with a gate": (case("bias", "gate", k=300), "over more than 256 offsets"),
    "a far bias that learns": (case("bias", k=5000), "gradients of a bias over more than 4096 offsets"),
    "a position out of the world": (case("bias", query_offset=2**31), "position 2147483648"),
    "a rule": (case("bias", pattern=torch.ge), "masks other than causality"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_auto_runs_blockwise_where_the_kernels_do_not_take_the_case(name: str, gpu: list[Any]):
    refused, words = REFUSED[name]
    assert choose("auto", refused) == "blockwise"
    with pytest.raises(ValueError, match=rf"'fused' cannot take .*{words}.*'blockwise', which takes everything"):
        choose("fused", refused)


def test_a_far_bias_that_learns_is_taken_where_no_gradient_is_wanted(gpu: list[Any]):
    with torch.no_grad():
        assert choose("auto", case("bias", k=5000)) == "fused"


def test_one_query_is_left_to_an_engine_without_blocks(gpu: list[Any]):
    assert choose("auto", case("bias", queries=1)) == "eager"
    assert choose("fused", case("bias", queries=1)) == "fused"


def test_without_triton_cuda_has_blockwise(gpu: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda, "HAS_TRITON", False)
    assert choose("auto", case("bias")) == "blockwise"
    with pytest.raises(ValueError, match="without Triton, which PyTorch's builds for CUDA bring"):
        choose("fused", case("bias"))


def test_a_device_without_kernels_has_blockwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(fused.HARDWARE, "cpu")
    assert choose("auto", case("bias")) == "blockwise"
    with pytest.raises(ValueError, match="'fused' cannot take tensors on 'cpu'"):
        choose("fused", case("bias"))


def test_the_self_check_is_made_once_for_what_kernels_are_compiled_for(gpu: list[Any]):
    for _ in range(2):
        choose("auto", case("bias"))
        choose("auto", case("query", dim=48, causal=True, window=20, dtype=torch.float16, k=20))
    cpu = torch.device("cpu")
    assert gpu == [
        (cpu, torch.bfloat16, 16, 16, ("bias",), False, False),
        (cpu, torch.float16, 64, 32, ("query",), True, True),
    ]


def broken(*kind: Any) -> float:
    raise RuntimeError("out of resource: shared memory\nmore words")


FAULTS: dict[str, Any] = {
    "off by 5.0e-01": lambda *kind: 0.5,
    "off by nan": lambda *kind: float("nan"),
    "RuntimeError: out of resource: shared memory": broken,
}


@pytest.mark.parametrize("words", FAULTS)
def test_where_the_self_check_fails_it_is_said_once_and_blockwise_runs(
    words: str, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(cuda, "largest_error", FAULTS[words])
    monkeypatch.setattr(cuda.logger, "warning", lambda text, *values: said.append(text % values))
    for _ in range(2):
        assert choose("auto", case("bias")) == "blockwise"
    (line,) = said
    assert words in line
    assert "engine='auto' runs 'blockwise'" in line
    assert "more words" not in line
    with pytest.raises(ValueError, match=f"bfloat16 on this device, where its self-check failed: .*{words}"):
        choose("fused", case("bias"))


def test_float32_may_be_off_by_what_tf32_is_where_that_is_allowed(gpu: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda, "largest_error", lambda *kind: 1e-3)
    monkeypatch.setattr(cuda.logger, "warning", lambda *words: None)
    assert choose("auto", case("bias", dtype=torch.float32)) == "blockwise"
    cuda.failure.cache_clear()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert choose("auto", case("bias", dtype=torch.float32)) == "fused"


def test_shapes_that_do_not_fit_are_refused_before_memory_is_read(gpu: list[Any]):
    given = case("bias")
    with pytest.raises(ValueError, match=r"The key has shape \[1, 1, 600, 8\], but must have \[1, 1, 600, 16\]"):
        attend(given.query, given.key[..., :8], given.value, given.terms, given.mask, scale=1.0, engine="fused")
