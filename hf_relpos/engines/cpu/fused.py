"""The engine for the CPU: one compiled kernel, forward and backward, with memory linear in the length.

The kernel is `kernel.cpp`; here it becomes two operators of PyTorch, so that a compiled graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from hf_relpos.compat import pytorch
from hf_relpos.engines.cpu.library import DTYPES, Kernel, address, load, strided, table
from hf_relpos.engines.engine import BATCHED, NOT_DERIVED, PLAIN, SECOND, Case, Engine
from hf_relpos.engines.shapes import check_shapes
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# Bytes: where PyTorch's memory for CPUs begins is a multiple of it.
ALIGNMENT = 64

# Positions beyond this are out of the kernel's reach; any window beyond it is none.
FARTHEST = 2**40


def refuses(case: Case) -> str | None:
    """What of a case on the CPU this engine cannot take exactly, in words; None if it takes it."""
    missing = _missing()
    if missing is not None:
        return f"anything without its compiled kernel: {missing}"
    if case.dtype not in DTYPES:
        return f"queries of {case.dtype}"
    if not -FARTHEST <= case.mask.query_offset <= FARTHEST:
        return f"queries at the position {case.mask.query_offset}"
    return None


def pays_off(case: Case) -> bool:
    """Whether there are terms or several queries: one without terms PyTorch's own operator answers as fast."""
    return not case.is_plain or case.query.shape[2] > 1


@torch.compiler.assume_constant_result
def _missing() -> str | None:
    """Why there is no compiled kernel, in words; None if there is one. Asked once for a compiled graph."""
    kernel = load()
    return kernel if isinstance(kernel, str) else None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float,
) -> tuple[Tensor, None]:
    """Attention as :func:`hf_relpos.engines.fused.attend` asks for it.

    float16 and bfloat16 are read as they are and summed in float32. Any strides will do: what matrix products can't
    read is copied a block at a time. Bit-equal from run to run and for any number of threads. Which weights are
    dropped is drawn from PyTorch's generator once per call.

    Raises:
        ValueError: if the shapes do not fit one another.
    """
    compiling = torch.compiler.is_compiling()
    padding = mask.padding if compiling or mask.hides_keys else None
    seed = torch.randint(2**62, (1,), device="cpu") if dropout > 0 else None
    learns = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (query, key, value, *terms)
    )
    if learns and padding is not None and not compiling:
        # The backward pass reads the padding again, and must not see what the caller writes into it meanwhile.
        padding = padding.clone()
    query_offset: int = mask.query_offset  # type: ignore[assignment]  # a tensor is refused
    call = _Call(query, key, value, *terms, padding, seed, query_offset, mask.causal, mask.window, scale, dropout)
    if compiling or pytorch.is_watched():
        output, _ = torch.ops.hf_relpos.fused_attention.default(*call)
    elif learns:
        output, _ = _Attention.apply(*call)
    else:
        output, _ = _forward(*call)
    return output, None


# ----------------------------------------------------------------------------------------------------------------------
# Calls of the kernel
# ----------------------------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    """A call, in the order of the operators' arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    # The terms, in their order.
    bias: Tensor | None
    query_table: Tensor | None
    key_table: Tensor | None
    value_table: Tensor | None
    gate: Tensor | None
    native_bias: Tensor | None
    # The rest of the tensors.
    tokens: Tensor | None
    seed: Tensor | None
    # The rules.
    query_offset: int
    causal: bool
    window: int | None
    scale: float
    dropout: float

    def as_read(self) -> _Call:
        """The call with tables that lie as the kernel reads them.

        Raises:
            ValueError: for shapes that do not fit one another, by which it reads memory; names the tensor, its shape
                and the shape that fits.
        """
        terms = RelativeTerms(*[term if term is None else _dense(term) for term in self[3:9]])
        check_shapes(self.query, self.key, self.value, terms)
        tokens = self.tokens if self.tokens is None else _dense(self.tokens)
        return _Call(self.query, self.key, self.value, *terms, tokens, *self[10:])

    def numbers(
        self,
        output: Tensor,
        log_sums: Tensor,
        of_output: Tensor | None = None,
        gradients: Sequence[Tensor | None] = (None,) * 9,
    ) -> tuple[float, ...]:
        """What the kernel is told in either pass: its record, see `Kernel.run`. All tensors must outlive it.

        Args:
            output: the output.
            log_sums: the log-sum-exps of the scores.
            of_output: its gradient.
            gradients: where those of the first nine tensors go, if anywhere.
        """
        batch, heads, queries, dim = self.query.shape
        _, key_heads, keys, value_dim = self.value.shape
        bias, query_table, key_table, value_table, gate, native_bias = gradients[3:]
        return (
            DTYPES[self.query.dtype], batch, heads, key_heads, queries, keys, dim, value_dim,
            self.query_offset, self.causal, -1 if self.window is None else min(self.window, 2 * FARTHEST),
            self.scale, self.dropout, 0 if self.seed is None else int(self.seed), address(self.tokens),
            *strided(self.query), *strided(self.key), *strided(self.value), *strided(output),
            *strided(of_output), *strided(gradients[0]), *strided(gradients[1]), *strided(gradients[2]),
            address(log_sums),
            *table(self.bias, bias), *table(self.native_bias, native_bias), *table(self.query_table, query_table),
            *table(self.key_table, key_table), *table(self.value_table, value_table),
            address(self.gate), address(gate), 1 if self.gate is None else self.gate.shape[0],
        )  # fmt: skip


def _kernel() -> Kernel:
    kernel = load()
    if isinstance(kernel, str):
        raise RuntimeError(f"The engine 'fused' has no compiled kernel: {kernel}.")
    return kernel


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The output, laid out as ``[batch, queries, heads, value_dim]``, and the log-sum-exps of the scores.

    Args:
        *arguments: the call.
    """
    call, kernel = _Call(*arguments).as_read(), _kernel()
    output, log_sums = _outputs(call.query, call.value)
    kernel.run(kernel.forward, *call.numbers(output, log_sums))
    return output, log_sums


def _backward(*arguments: Any) -> list[Tensor]:
    """The gradients of the first nine tensors; an empty tensor for each that is not wanted.

    Args:
        *arguments: the call; the gradient of its output; what the forward pass returned; which gradients are wanted.
    """
    *of_call, of_output, output, log_sums, wanted = arguments
    call, kernel = _Call(*of_call).as_read(), _kernel()
    gradients = _gradients(call, wanted)
    at = [gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)]
    kernel.run(kernel.backward, *call.numbers(output, log_sums, of_output, at))
    return gradients


def _dense(tensor: Tensor) -> Tensor:
    """A contiguous tensor that begins where PyTorch would have it begin.

    Weights that were read from a file may lie anywhere, and matrix products round by where their operands lie.
    """
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def _outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    dim = value.shape[-1]
    output = query.new_empty_strided((batch, heads, queries, dim), (queries * heads * dim, dim, heads * dim, 1))
    wide = torch.promote_types(query.dtype, torch.float32)
    return output, query.new_empty(batch, heads, queries, dtype=wide)


def _gradients(call: _Call, wanted: list[bool]) -> list[Tensor]:
    """Room for the gradients: those of states are laid out like them, those of tables and gates are dense."""
    likes: list[tuple[Any, torch.memory_format]] = [
        *((states, torch.preserve_format) for states in call[:3]),
        *((term, torch.contiguous_format) for term in call[3:9]),
    ]
    return [
        torch.empty_like(tensor, memory_format=layout) if want and tensor is not None else call.query.new_empty(0)
        for (tensor, layout), want in zip(likes, wanted, strict=True)
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Operators
# ----------------------------------------------------------------------------------------------------------------------

TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? query_table, Tensor? key_table, "
    "Tensor? value_table, Tensor? gate, Tensor? native_bias, Tensor? tokens, Tensor? seed"
)
RULES = "SymInt query_offset, bool causal, SymInt? window, float scale, float dropout"
DIFFERENTIABLE, ARGUMENTS = 9, len(_Call._fields)


def _run(operator: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What an operator computes; by the operator itself only where somebody looks on, since that takes its time."""
    if type(arguments[0]) in PLAIN and not pytorch.is_watched():
        return function(*arguments)
    with pytorch.below_autograd():
        return getattr(torch.ops.hf_relpos, operator).default(*arguments)


class _Attention(torch.autograd.Function):
    """The gradient of the forward operator: the backward operator."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output, log_sums = _run("fused_attention", _forward, *arguments)
        ctx.save_for_backward(*arguments[:11], output, log_sums)
        ctx.rules = arguments[11:]
        ctx.mark_non_differentiable(log_sums)
        return output, log_sums

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if pytorch.is_batched(output_gradient):
            raise NotImplementedError(NOT_DERIVED.format(BATCHED))
        *tensors, output, log_sums = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:DIFFERENTIABLE])
        # Only a graph of the gradients has a use for their own.
        differentiate = _backward_recorded if torch.is_grad_enabled() else _backward_at_once
        gradients = differentiate(*tensors, *ctx.rules, output_gradient, output, log_sums, wanted)
        first = (gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))
        return (*first, *[None] * (ARGUMENTS - DIFFERENTIABLE))


class _AttentionBackward(torch.autograd.Function):
    """The backward operator in a graph of its own (`create_graph=True`), which says that it ends there."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(_backward_at_once(*arguments))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise NotImplementedError(NOT_DERIVED.format(SECOND))


def _backward_at_once(*arguments: Any) -> list[Tensor]:
    gradients: list[Tensor] = _run("fused_attention_backward", _backward, *arguments)
    return gradients


def _backward_recorded(*arguments: Any) -> list[Tensor]:
    return list(_AttentionBackward.apply(*arguments))


def _forward_fake(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _outputs(query, value)


def _backward_fake(*arguments: Any) -> list[Tensor]:
    return _gradients(_Call(*arguments[:ARGUMENTS]), arguments[-1])


def _register() -> torch.library.Library:
    """The operators ``hf_relpos::fused_attention`` and ``..._backward``, and what PyTorch must know of them.

    Their gradients are registered as autograd functions of ours, which cost a third of what
    ``torch.library.register_autograd`` makes.
    """
    library = torch.library.Library("hf_relpos", "FRAGMENT")
    library.define(f"fused_attention({TENSORS}, {RULES}) -> (Tensor, Tensor)")
    library.define(
        f"fused_attention_backward({TENSORS}, {RULES}, Tensor output_gradient, Tensor output, Tensor log_sums, "
        "bool[] wanted) -> Tensor[]"
    )
    library.impl("fused_attention", _forward, "CPU")
    library.impl("fused_attention_backward", _backward, "CPU")
    library.impl("fused_attention", _Attention.apply, "Autograd")
    library.impl("fused_attention_backward", _backward_recorded, "Autograd")
    torch.library.register_fake("hf_relpos::fused_attention", _forward_fake, lib=library)
    torch.library.register_fake("hf_relpos::fused_attention_backward", _backward_fake, lib=library)
    return library


# A reload of this module finds the operators there.
if not hasattr(torch.ops.hf_relpos, "fused_attention"):
    _LIBRARY = _register()


ENGINE = Engine("fused", attend, refuses, pays_off, guards=True)
