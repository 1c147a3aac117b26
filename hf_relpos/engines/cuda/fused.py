"""The engine for CUDA: kernels in Triton, forward and backward, with memory linear in the length.

The kernels (`kernels.py`) become two operators of PyTorch, so that a compiled graph can hold them. Between them and
the terms is plain PyTorch: autograd does tables and gates. Of each kind of case that a process meets, a small one is
compared with `eager` first.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import logging

from hf_relpos.compat import pytorch
from hf_relpos.engines import eager
from hf_relpos.engines.engine import BATCHED, NOT_DERIVED, SECOND, Case, Engine
from hf_relpos.engines.shapes import check_shapes
from hf_relpos.masks import AttentionMask
from hf_relpos.names import ATTENTION_NAME
from hf_relpos.terms import RelativeTerms, horizon, widen

logger = logging.get_logger(__name__)

HAS_TRITON = importlib.util.find_spec("triton") is not None

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Queries, and keys, of a tile; the smaller one where the other would not fit into registers (tests/test_cuda.py).
BLOCK, SMALL_BLOCK = 64, 32

# Numbers of a head: the kernels are compiled for powers of two, and a product of matrices takes 16 at least.
LEAST_DIM, MOST_DIM = 16, 128

# Rows of tables begin at multiples of so many numbers. Horizons are powers of two from there on, so that few kernels
# are compiled.
ALIGNMENT = 16

# The most offsets to each side: of rows that each query has for itself, and of a bias whose gradient is wanted, which
# takes a row for each block of queries.
MOST_OFFSETS, MOST_LEARNED = 256, 4096

# Positions beyond this do not fit into the kernels' 32 bits; any window beyond it is none.
FARTHEST = 2**30

LOG2_E = math.log2(math.e)

# What the self-check lets pass, as a part of the size of a tensor; TF32 has as many digits as float16.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def refuses(case: Case) -> str | None:
    """What of a case on CUDA this engine cannot take, in words; None if it takes it."""
    terms, offset = case.terms, case.mask.query_offset
    if not HAS_TRITON:
        return "anything on CUDA without Triton, which PyTorch's builds for CUDA bring"
    if case.dtype not in DTYPES:
        return f"queries of {case.dtype} on CUDA"
    if max(case.query.shape[-1], case.value.shape[-1]) > MOST_DIM:
        return f"heads of more than {MOST_DIM} numbers on CUDA"
    if terms.key is not None:
        return "vectors that meet the key on CUDA"
    if not -FARTHEST <= offset <= FARTHEST:
        return f"queries at the position {offset} on CUDA"
    farthest = _horizon(terms)
    by_tokens = terms.bias is not None and terms.gate is not None
    if farthest > MOST_OFFSETS and (by_tokens or terms.query is not None or terms.value is not None):
        return f"vectors, or biases with a gate by tokens, over more than {MOST_OFFSETS} offsets on CUDA"
    if farthest > MOST_LEARNED and torch.is_grad_enabled() and any(table.requires_grad for table in terms.tables):
        return f"gradients of a bias over more than {MOST_LEARNED} offsets on CUDA"
    failed = _failure(
        case.query.device, case.dtype, _dim(case.query, case.value), farthest, tuple(terms.named), case.mask.causal,
        case.mask.window is not None,
    )  # fmt: skip
    return None if failed is None else f"{case.dtype} on this device, where its self-check failed: {failed}"


def pays_off(case: Case) -> bool:
    """Whether there are terms and several queries: a block with one would leave nearly all of the multiplier idle."""
    return not case.is_plain and case.query.shape[2] > 1


def _kernels() -> ModuleType:
    """Imported when they are run: few machines have Triton."""
    from hf_relpos.engines.cuda import kernels

    return kernels


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """Attention as :func:`hf_relpos.engines.fused.attend` asks for it.

    float16 and bfloat16 are multiplied as they are and summed in float32; float32 by three products in TF32, or by one
    if ``torch.set_float32_matmul_precision`` allows. Bit-equal from run to run. Which weights are dropped is drawn from
    PyTorch's generator for the device once per call.

    Raises:
        ValueError: if the shapes do not fit one another.
    """
    check_shapes(query, key, value, terms)
    with eager.full_precision(query.device):
        gate = None if terms.gate is None else terms.gate[..., None]
        farthest, value_dim = _horizon(terms), value.shape[-1]
        rows = _rows(query, terms, gate, farthest, scale)
        if scale <= 0:  # the kernels take maxima before they scale
            query, scale = query * scale, 1.0
        dim = _dim(query, value)
        output, _, mass = _attention(
            *(_as_wide_as(dim, states) for states in (query, key, value)), rows, mask.padding,
            torch.randint(2**62, (1,), device=query.device) if dropout > 0 else None,
            mask.query_offset, mask.causal, None if mask.window is None else min(mask.window, FARTHEST),
            scale, farthest, terms.value is not None, dropout,
        )  # fmt: skip
        output = output[..., :value_dim]
        if terms.value is not None:
            # All weights mix the left end of the table, those at other offsets what these have more.
            first, others = widen(terms.value, farthest).split([1, 2 * farthest], dim=1)
            mixed = mass @ torch.cat([first, others - first], dim=1)
            output = output + (mixed if gate is None else gate * mixed)
    return output, None


def _rows(query: Tensor, terms: RelativeTerms, gate: Tensor | None, farthest: int, scale: float) -> Tensor | None:
    """What is added to scores: ``[batch, heads, queries, 2k + 1]``, or ``[heads, 2k + 1]`` if to those of all queries.

    A constant of a query changes no weight, so rows begin with zero.
    """
    batch, heads, queries, _ = query.shape
    rows = eager.score_rows(query if terms.query is None else query.float() * scale, terms, gate)
    if rows is None:
        return None
    rows = widen(rows, farthest, dim=-1)
    rows = rows - rows[..., :1]
    return rows.squeeze(-2).expand(heads, -1) if rows.ndim == 3 else rows.expand(batch, heads, queries, -1)


def _horizon(terms: RelativeTerms) -> int:
    """The horizon of all tables together that the kernels are compiled for."""
    return _power_of_two(max([ALIGNMENT, *map(horizon, terms.tables)]), ALIGNMENT)


def _dim(query: Tensor, value: Tensor) -> int:
    """The numbers of a head that the kernels are compiled for."""
    return _power_of_two(max(query.shape[-1], value.shape[-1]), LEAST_DIM)


def _power_of_two(number: int, least: int) -> int:
    power = least
    while power < number:
        power *= 2
    return power


def _as_wide_as(dim: int, states: Tensor) -> Tensor:
    """States with zeros behind the numbers of each head."""
    return states if states.shape[-1] == dim else F.pad(states, (0, dim - states.shape[-1]))


# ----------------------------------------------------------------------------------------------------------------------
# Calls of the kernels
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rules:
    """The numbers of a call, in the order of the operators' arguments, and of a block."""

    query_offset: int
    causal: bool
    window: int | None
    scale: float
    horizon: int
    mixes: bool
    dropout: float
    block: int

    @property
    def gain(self) -> float:
        """The factor of weights that are not dropped."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0

    @property
    def floor(self) -> int:
        """The offset of the queries rounded down: what it lacks is made up for by where rows of tables begin."""
        return self.query_offset // ALIGNMENT * ALIGNMENT

    @property
    def width(self) -> int:
        """Numbers in a row of a skewed table, or of sums over diagonals."""
        return 2 * self.horizon + 4 * self.block + ALIGNMENT

    @property
    def zero(self) -> int:
        """Where in the first of these rows the offset zero is."""
        return self.horizon + 2 * self.block + self.query_offset - self.floor

    def blocks(self, length: int) -> int:
        """How many it takes."""
        return -(-length // self.block)


class _Band:
    """A table ``[batch, heads, queries, 2k + 1]`` as the kernels read it, see there.

    Attributes:
        data: what the kernels are given.
        table: the table, as a view of it.

    Args:
        query: ``[batch, heads, queries, head_dim]``.
        rules: of the call.
        fill: what is in the table, and between its rows.
    """

    def __init__(self, query: Tensor, rules: _Rules, fill: float = 0.0) -> None:
        batch, heads, queries, _ = query.shape
        row = 2 * rules.horizon + ALIGNMENT + 1
        of_head = rules.blocks(queries) * rules.block * row
        margin = 2 * rules.block  # tiles at the ends reach beyond
        numbers = torch.full((batch * heads * of_head + 2 * margin,), fill, dtype=torch.float32, device=query.device)
        self.data = numbers[margin:]
        self.table = numbers.as_strided(
            (batch, heads, queries, 2 * rules.horizon + 1), (heads * of_head, of_head, row, 1),
            margin + rules.query_offset - rules.floor,
        )  # fmt: skip


def _is_per_query(rows: Tensor | None, mixes: bool) -> bool:
    """Whether each query has rows for itself, which take registers."""
    return mixes or (rows is not None and rows.ndim == 4)


def _block(query: Tensor, rows: Tensor | None, mixes: bool, dropout: float) -> int:
    """Queries, and keys, of a tile."""
    much = query.dtype == torch.float32 or (dropout > 0 and _is_per_query(rows, mixes))
    return SMALL_BLOCK if much else BLOCK


def _skewed(table: Tensor, rules: _Rules) -> Tensor:
    """A table ``[heads, 2k + 1]`` as the kernels read it: ``[heads, queries of a block, offsets]``."""
    places = torch.arange(rules.width, device=table.device)
    offsets = places - torch.arange(rules.block, device=table.device)[:, None] - rules.zero
    return table[:, offsets.clamp(-rules.horizon, rules.horizon) + rules.horizon]


def _laid_out(rows: Tensor | None, query: Tensor, rules: _Rules) -> Tensor | None:
    """What is added to scores as the kernels read it, in units of log 2."""
    if rows is None:
        return None
    if rows.ndim == 2:
        return _skewed(rows * LOG2_E, rules)
    band = _Band(query, rules)
    torch.mul(rows, LOG2_E, out=band.table)
    return band.data


def _readable(states: Tensor) -> Tensor:
    """States with the numbers of a head side by side, and those of a sequence within reach of 32 bits."""
    is_near = states.shape[2] * states.stride(2) < 2**31
    return states if states.stride(-1) == 1 and is_near else states.contiguous()


def _tokens(padding: Tensor | None, key: Tensor, block: int) -> Tensor | None:
    """A byte for each place of the blocks of keys, 0 where there is nothing to see; None if there is no such place."""
    batch, _, keys, _ = key.shape
    spare = -keys % block
    if padding is None and not spare:
        return None
    seen = key.new_ones(batch, keys, dtype=torch.bool) if padding is None else padding
    return F.pad(seen.to(torch.uint8), (0, spare))


class Call:
    """What all kernels are told of a call, and what they are compiled for.

    Args:
        query: ``[batch, heads, queries, dim]``.
        key: ``[batch, key heads, keys, dim]``.
        value: the same.
        rows: what is added to scores, see :func:`_rows`.
        padding: bool ``[batch, keys]``.
        rules: of the call.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor | None, padding: Tensor | None, rules: _Rules
    ) -> None:
        kernels = _kernels()
        batch, heads, queries, dim = query.shape
        self.states = [_readable(states) for states in (query, key, value)]
        self.strides = [stride for states in self.states for stride in states.stride()[:3]]
        self.rows, self.tokens = _laid_out(rows, query, rules), _tokens(padding, key, rules.block)
        self.numbers = [
            0 if self.tokens is None else self.tokens.stride(0), heads, heads // key.shape[1], queries, key.shape[2],
            rules.query_offset, rules.floor, rules.window or 0, rules.scale * LOG2_E, rules.dropout, rules.gain,
        ]  # fmt: skip
        self._heads, self._blocks = batch * heads, rules.blocks
        added = kernels.NOTHING if rows is None else kernels.SKEWED if rows.ndim == 2 else kernels.ROWS
        exact = torch.get_float32_matmul_precision() == "highest"
        few = rules.block < BLOCK or (dim <= 64 and not _is_per_query(rows, rules.mixes))
        self.options = {
            "DIM": dim, "BLOCK": rules.block, "HORIZON": rules.horizon, "ADDED": added, "MIXES": rules.mixes,
            "HIDES": self.tokens is not None, "CAUSAL": rules.causal, "WINDOWED": rules.window is not None,
            "DROPS": rules.dropout > 0,
            "PRECISION": "tf32x3" if exact else "tf32", "num_warps": 4 if few else 8, "num_stages": 2,
        }  # fmt: skip

    def run(self, kernel: Any, length: int, tensors: list[Tensor | None], numbers: list[Any], **options: Any) -> None:
        """A kernel for every block of a length and every head. Tensors that it has no use for are None."""
        query = self.states[0]
        given = [query if tensor is None else tensor for tensor in tensors]
        with torch.cuda.device_of(query):
            kernel[(self._blocks(length) * self._heads,)](
                *self.states, *given, *self.strides, *numbers, **self.options, **options
            )


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor | None,
    padding: Tensor | None,
    seed: Tensor | None,
    query_offset: int,
    causal: bool,
    window: int | None,
    scale: float,
    horizon: int,
    mixes: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exps of the scores (base 2), and mass ``[batch, heads, queries, 2k + 1]``, or nothing.

    The output is laid out as ``[batch, queries, heads, dim]``. The mass is that of all weights, then that at the
    offsets ``-k + 1 .. k``.
    """
    rules = _Rules(query_offset, causal, window, scale, horizon, mixes, dropout, _block(query, rows, mixes, dropout))
    call = Call(query, key, value, rows, padding, rules)
    output, log_sums, mass = _results(query, horizon, mixes)
    scores = _Band(query, rules, fill=float("-inf")) if mixes else None
    tensors = [call.rows, call.tokens, seed, output, log_sums, None if scores is None else scores.data, mass]
    call.run(_kernels().forward, query.shape[2], tensors, call.numbers)
    if scores is not None:
        within = torch.exp2(scores.table[..., 1:-1] - log_sums[..., None])
        torch.mul(within, rules.gain, out=mass[..., 1:-1])
    return output, log_sums, mass


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor | None,
    padding: Tensor | None,
    seed: Tensor | None,
    query_offset: int,
    causal: bool,
    window: int | None,
    scale: float,
    horizon: int,
    mixes: bool,
    dropout: float,
    output: Tensor,
    log_sums: Tensor,
    mass: Tensor,
    output_gradient: Tensor,
    mass_gradient: Tensor,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, and of rows if they learn; else nothing."""
    rules = _Rules(query_offset, causal, window, scale, horizon, mixes, dropout, _block(query, rows, mixes, dropout))
    call = Call(query, key, value, rows, padding, rules)
    (batch, heads, queries, _), (_, key_heads, keys, dim) = query.shape, key.shape
    output_gradient = _readable(output_gradient)
    delta = (output_gradient.float() * output.float()).sum(-1)
    of_mass = None
    if mixes:
        # Without dropout the mass of all weights is constant.
        delta = delta + (mass * mass_gradient)[..., 0 if dropout > 0 else 1 :].sum(-1)
        of_mass = _Band(query, rules)
        of_mass.table.copy_(mass_gradient)
    per_head = rows is not None and rows.ndim == 2
    of_rows = _Band(query, rules) if learns and not per_head else None
    diagonals = delta.new_zeros(batch, heads, rules.blocks(queries), rules.width) if learns and per_head else None
    ends = torch.zeros_like(delta)
    of_query = query.new_empty(query.shape)
    # Of shared keys each head has its own gradient, to be summed in full precision.
    wide = key.dtype if key_heads == heads else torch.float32
    of_key, of_value = (key.new_empty(batch, heads, keys, dim, dtype=wide) for _ in range(2))
    given = [output_gradient, call.rows, None if of_mass is None else of_mass.data, call.tokens, seed, log_sums, delta]
    made = [of_query, None if of_rows is None else of_rows.data, diagonals, ends]
    numbers = [*output_gradient.stride()[:3], *call.numbers, scale]
    call.run(_kernels().backward_queries, queries, [*given, *made], numbers, LEARNS=learns)
    call.run(_kernels().backward_keys, keys, [*given, of_key, of_value], numbers)
    if key_heads != heads:
        of_key, of_value = (each.unflatten(1, (key_heads, -1)).sum(2).to(key.dtype) for each in (of_key, of_value))
    if of_rows is not None:
        of_added = of_rows.table.clone(memory_format=torch.contiguous_format)
        of_added[..., -1] = ends
    elif diagonals is not None:
        sums, first, last = diagonals.sum((0, 2)), rules.zero - horizon + 1, rules.zero + horizon
        of_end = sums[:, last:].sum(-1, keepdim=True) + ends.sum((0, 2))[:, None]
        of_added = torch.cat([torch.zeros_like(of_end), sums[:, first:last], of_end], dim=1)
    else:
        of_added = delta.new_empty(0)
    return of_query, of_key, of_value, of_added


def _results(query: Tensor, horizon: int, mixes: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what the forward operator returns."""
    batch, heads, queries, dim = query.shape
    return (
        query.new_empty(batch, queries, heads, dim).transpose(1, 2),
        query.new_empty(batch, heads, queries, dtype=torch.float32),
        query.new_empty((batch, heads, queries, 2 * horizon + 1) if mixes else 0, dtype=torch.float32),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Operators
# ----------------------------------------------------------------------------------------------------------------------

TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? rows, Tensor? padding, Tensor? seed"
RULES = "SymInt query_offset, bool causal, SymInt? window, float scale, SymInt horizon, bool mixes, float dropout"
RESULTS = "Tensor output, Tensor log_sums, Tensor mass, Tensor output_gradient, Tensor mass_gradient, bool learns"

# An operator's name is the whole process's: each copy of this code, as in folders of models, has its own.
_attention = torch.library.custom_op(
    f"hf_{ATTENTION_NAME}::triton_attention", _forward, mutates_args=(),
    schema=f"({TENSORS}, {RULES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
_attention_backward = torch.library.custom_op(
    f"hf_{ATTENTION_NAME}::triton_attention_backward", _backward, mutates_args=(),
    schema=f"({TENSORS}, {RULES}, {RESULTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@_attention.register_fake
def _forward_fake(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _results(query, *rest[-3:-1])


@_attention_backward.register_fake
def _backward_fake(query: Tensor, key: Tensor, value: Tensor, rows: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    of_states = (states.new_empty(states.shape) for states in (query, key, value))
    return *of_states, query.new_empty(0 if rows is None or not rest[-1] else rows.shape, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, _, _, _, _, _, _, _ = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.rules = inputs[len(tensors) :]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, of_output: Tensor, _: Tensor, of_mass: Tensor) -> tuple[Tensor | None, ...]:
    if pytorch.is_batched(of_output):
        raise NotImplementedError(NOT_DERIVED.format(BATCHED))
    *tensors, output, log_sums, mass = ctx.saved_tensors
    learns = ctx.needs_input_grad[3]
    *of_states, of_rows = _attention_backward(
        *tensors, *ctx.rules, output, log_sums, mass, of_output, of_mass, learns
    )  # fmt: skip
    return *of_states, of_rows if learns else None, None, None, *(None for _ in ctx.rules)


def _refuse(ctx: Any, *gradients: Tensor) -> NoReturn:
    raise NotImplementedError(NOT_DERIVED.format(SECOND))


_attention.register_autograd(_differentiate, setup_context=_save)
_attention_backward.register_autograd(_refuse)


# ----------------------------------------------------------------------------------------------------------------------
# Self-check
# ----------------------------------------------------------------------------------------------------------------------


@torch.compiler.assume_constant_result
def _failure(*kind: Any) -> str | None:
    """The answer of :func:`failure`. Asked once for a compiled graph."""
    return failure(*kind)


@cache
def failure(*kind: Any) -> str | None:
    """Why no case of a kind (see :func:`largest_error`) can be taken, in words, also in the log; None if it can."""
    device, dtype, dim, *_ = kind
    exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    tolerance = TOLERANCES[dtype if exact else torch.float16]
    try:
        error = largest_error(*kind)
    except Exception as raised:  # whatever it is, there are other engines
        found = f"{type(raised).__name__}: {str(raised).strip().partition(chr(10))[0]}"
    else:
        if error <= tolerance:
            return None
        found = f"it is off by {error:.1e} of what it computes, where {tolerance:.0e} is allowed"
    logger.warning(
        "hf_relpos: the engine 'fused' failed its self-check (%s, %s, heads of %d): %s. There engine='auto' runs "
        "'blockwise' (on short inputs 'eager'), which is slower. Please report it.",
        device, dtype, dim, found,
    )  # fmt: skip
    return found


def largest_error(
    device: torch.device,
    dtype: torch.dtype,
    dim: int,
    farthest: int,
    names: tuple[str, ...],
    causal: bool,
    windowed: bool,
) -> float:
    """How far a small case is from what `eager` makes of it in float64.

    Args:
        device: where.
        dtype: of queries, keys and values.
        dim: numbers of a head.
        farthest: the horizon of all tables.
        names: which terms there are.
        causal: whether keys after the query are hidden.
        windowed: whether keys far away are.

    Returns:
        Of the output and each gradient the norm of the difference over the norm; the largest of these.
    """
    random = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    # Blocks in both tails, the last ones not full.
    heads, before = 2, 9
    queries = min(farthest, MOST_OFFSETS) + 2 * BLOCK + 5
    keys, table = queries + before, (heads, 2 * farthest + 1)
    shapes = {
        "bias": table, "native_bias": table, "query": (*table, dim), "value": (*table, dim), "gate": (1, heads, queries)
    }  # fmt: skip
    states = [random(1, heads, queries, dim), random(1, 1, keys, dim), random(1, 1, keys, dim)]
    tables = {name: random(*shapes[name]) for name in names}
    padding = torch.ones(1, keys, dtype=torch.bool, device=device)
    padding[:, [0, keys // 2]] = False
    mask = AttentionMask(queries, keys, before, causal, window=queries // 2 if windowed else None, padding=padding)

    def results(compute: Callable[..., Any], of_states: torch.dtype, of_tables: torch.dtype) -> list[Tensor]:
        given = [one.to(device, dtype).to(of_states).requires_grad_() for one in states]
        terms = {name: one.to(device, dtype).to(of_tables).requires_grad_() for name, one in tables.items()}
        output, _ = compute(*given, RelativeTerms(**terms), mask, scale=dim**-0.5)
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [*given, *terms.values()])]

    with torch.inference_mode(False), torch.enable_grad():
        actual = results(attend, dtype, torch.float32)
        expected = results(eager.attend, torch.float64, torch.float64)
    return max(float((one - right).norm() / right.norm()) for one, right in zip(actual, expected, strict=True))


ENGINE = Engine("fused", attend, refuses, pays_off, guards=True)
