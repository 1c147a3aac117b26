"""The fast engine: the tails by PyTorch's fused operator, the band around the diagonal as small dense blocks.

Beyond the horizon ``k`` every relative term is constant for a query. Queries go in blocks. For each block, the keys
that lie left of the band for *all* its queries are plain attention plus one number per query, and so are those right
of it. The fused operator computes both, and the number only shifts its log-sum-exp. What is left is a window: the
block's own keys and about ``k`` more on either side, dense work that is linear in length. The three parts merge by
their log-sum-exps.

The backward pass calls the operator's own backward with the merged statistics. Given the log-sum-exp less the query's
number, it finds the merged weights again; given the output less the value vector that all pairs of the tail share, it
finds their gradients. Nothing of the size queries x keys is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.utils import logging

from hf_relpos.engines import eager
from hf_relpos.engines.offsets import collect, spread
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, horizon, widen

logger = logging.get_logger(__name__)

# Queries in a block, for short inputs; twice and four times as many for longer ones. Small blocks leave more to the
# fused operator, large ones call it less often.
LEAST_BLOCK = 64
# About this many numbers of a window are worked on at once, so that they stay in the processor's cache.
WINDOW_NUMBERS = 2**20


def refuses(query: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    if torch.compiler.is_compiling():
        return "torch.compile"  # it would compile anew for every number of blocks
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    if torch._C._are_functorch_transforms_active():
        return "transforms of torch.func"
    if query.device.type != "cpu":
        return f"tensors on {query.device.type!r}"
    if dropout > 0:
        return "attention dropout"
    if terms.key is not None:
        return "terms on the key"
    if mask.window is not None or mask.pattern is not None or mask.dense is not None:
        return "masks other than causality and padding"
    if not isinstance(mask.query_offset, int) or not 0 <= mask.query_offset <= mask.key_length - mask.query_length:
        return "queries that do not stand among the keys"
    if query.shape[-1] != value.shape[-1]:
        return "values of another size than the keys"
    if not operator_is_sound():
        return "this release of PyTorch"
    return None


@cache
def operator_is_sound() -> bool:
    """Whether PyTorch's operator, which is not public and may change, still does what this engine needs of it.

    Asked once per process: a small case, forward and backward, against the reference.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad():
            difference = max(_difference_on_a_small_case(causal) for causal in (False, True))
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if difference < 1e-10:
            return True
        reason = f"results differ by {difference:.1e}"
    logger.warning_once(
        f"hf_relpos: the fused attention operator of PyTorch {torch.__version__} is not what the engine 'banded' needs "
        f"({reason}); 'eager' and 'blockwise' run instead."
    )
    return False


def _difference_on_a_small_case(causal: bool) -> float:
    """The largest difference to the reference among the output and all gradients. Draws no random numbers."""

    def numbers(*shape: int) -> Tensor:
        steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device="cpu")
        return (steps * 0.7 + len(shape)).sin().reshape(shape).requires_grad_()

    states = query, key, value = numbers(2, 1, 12, 4), numbers(2, 1, 12, 4), numbers(2, 1, 12, 4)
    terms = RelativeTerms(bias=numbers(1, 5), query=numbers(1, 5, 4), value=numbers(1, 5, 4))
    padding = torch.ones(2, 12, dtype=torch.bool, device="cpu")
    padding[1, 7:] = False
    mask = AttentionMask(12, 12, causal=causal, padding=padding)
    inputs = [*states, *(table for table in (terms.bias, terms.query, terms.value) if table is not None)]
    expected, _ = eager.attend(query, key, value, terms, mask, scale=0.5)
    output, _ = attend(query, key, value, terms, mask, scale=0.5, block=4)
    differences = [output - expected]
    for first, second in zip(*(torch.autograd.grad(x.pow(2).sum(), inputs) for x in (output, expected)), strict=True):
        differences.append(first - second)
    return max(float(difference.detach().abs().max()) for difference in differences)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
    block: int | None = None,
) -> tuple[Tensor, None]:
    """Attention with relative terms, for all that :func:`refuses` does not refuse.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights. ``block`` is
    the number of queries in a block; None takes the one found fastest for the length.
    """
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with eager.full_precision(query.device):
        query, key, value = (eager.per_head(states.to(dtype), query.shape[1]) for states in (query, key, value))
        terms = terms.to(dtype)
        batch, heads, queries, _ = query.shape
        gate = None if terms.gate is None else terms.gate.unsqueeze(-1)
        rows = eager.score_rows(query * scale, terms, gate)
        k = max(1, 0 if rows is None else horizon(rows, -1), 0 if terms.value is None else horizon(terms.value))
        rows = query.new_zeros(1, 1, 1, 2 * k + 1) if rows is None else widen(rows, k, dim=-1)
        rows = rows.expand(batch, heads, queries, -1)
        mixed = None if terms.value is None else widen(terms.value, k).expand(heads, -1, -1)
        gate = None if gate is None or mixed is None else gate.expand(batch, -1, -1, -1)
        padding = None
        if mask.padding is not None and not mask.padding.all():
            padding = query.new_zeros(batch, 1, 1, mask.key_length).masked_fill_(
                ~mask.padding[:, None, None], float("-inf")
            )
        layout = _Layout(queries, mask.key_length, mask.query_offset, k, mask.causal, block or _block(queries), scale)  # type: ignore[arg-type]
        size = max(1, WINDOW_NUMBERS // (heads * layout.block * (layout.block + 2 * k)))
        parts = [
            _Banded.apply(*states, mixed, layout)
            for states in zip(
                *(_split(tensor, size, batch) for tensor in (query, key, value, rows, gate, padding)), strict=True
            )
        ]
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.to(out_dtype), None


def _block(queries: int) -> int:
    return LEAST_BLOCK * (1 if queries <= 512 else 2 if queries <= 2048 else 4)


def _split(tensor: Tensor | None, size: int, batch: int) -> list[Tensor | None]:
    """A tensor in parts of the batch."""
    return [None] * max(1, -(-batch // size)) if tensor is None else list(tensor.split(size))


class _Layout(NamedTuple):
    """How the queries and keys of a call fall into blocks, tails and windows."""

    queries: int
    keys: int
    offset: int
    k: int
    causal: bool
    block: int
    scale: float

    def blocks(self) -> Iterator[_Block]:
        for start in range(0, self.queries, self.block):
            stop = min(start + self.block, self.queries)
            first, last = start + self.offset, stop - 1 + self.offset
            left = min(max(0, first - self.k + 1), self.keys)
            right = self.keys if self.causal else min(self.keys, last + self.k)
            window = slice(left, last + 1 if self.causal else right)
            tails = [(0, slice(0, left)), (-1, slice(right, self.keys))]
            yield _Block(
                slice(start, stop), window, first - left, [(row, keys) for row, keys in tails if keys.stop > keys.start]
            )


class _Block(NamedTuple):
    """One block of queries.

    Attributes:
        queries: the block's queries.
        window: the keys that are dense work.
        first: position of the first query in the window.
        tails: for each tail there is, the table row that all its pairs share (0 or -1), and its keys.
    """

    queries: slice
    window: slice
    first: int
    tails: list[tuple[int, slice]]


class _Banded(torch.autograd.Function):
    """Attention with rows over offsets added to the scores, and a table over offsets mixed into the output.

    Args: query, key, value ``[batch, heads, length, dim]``; ``rows`` ``[batch, heads, queries, 2k + 1]``; ``gate``
    ``[batch, heads, queries, 1]`` or None; ``padding`` ``[batch, 1, 1, keys]``, 0 or -inf, or None; ``mixed`` ``[heads,
    2k + 1, dim]`` or None; the layout.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: Tensor,
        gate: Tensor | None,
        padding: Tensor | None,
        mixed: Tensor | None,
        layout: _Layout,
    ) -> Tensor:
        k, scale = layout.k, layout.scale
        shown = _hide_later(rows, k) if layout.causal else rows
        output = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
        log_sum = query.new_empty(query.shape[:3])
        shares = None if mixed is None else torch.empty_like(rows, memory_format=torch.contiguous_format)
        # The gradient of a row that a tail shares needs that tail's own output. One tail per block is enough: the
        # gradients of a query's scores sum to zero, so the other tail's follows from it.
        probe_output = torch.zeros_like(output) if ctx.needs_input_grad[3] else None
        probe_log_sum = torch.full_like(log_sum, float("-inf")) if ctx.needs_input_grad[3] else None
        for at, window, first, tails in layout.blocks():
            states = query[:, :, at]
            tail_parts: list[tuple[int, Tensor, Tensor]] = []
            for row, keys in tails:
                tail_output, tail_log_sum = _tail(states, key[:, :, keys], value[:, :, keys], padding, keys, scale)
                tail_log_sum = tail_log_sum + rows[:, :, at, row]
                if probe_output is not None and probe_log_sum is not None and not tail_parts:
                    probe_output[:, :, at] = tail_output
                    probe_log_sum[:, :, at] = tail_log_sum
                tail_parts.append((row, tail_output, tail_log_sum))
            scores = _window(states, key[:, :, window], shown[:, :, at], first, padding, window, scale)
            highest = scores.amax(-1)
            weights = scores.softmax(-1)
            # The largest weight is 1 / sum(exp(scores - highest)).
            window_log_sum = highest - weights.amax(-1).log_()
            if padding is not None:
                unseen = highest == float("-inf")
                weights.masked_fill_(unseen.unsqueeze(-1), 0.0)
                window_log_sum.masked_fill_(unseen, float("-inf"))
            total = window_log_sum
            for _, _, tail_log_sum in tail_parts:
                total = torch.logaddexp(total, tail_log_sum)
            if padding is not None:
                total = total.masked_fill(total == float("-inf"), 0.0)
            mass = (window_log_sum - total).exp_().unsqueeze(-1)
            block_output = (weights @ value[:, :, window]).mul_(mass)
            block_shares = None if shares is None else collect(weights, k, first).mul_(mass)
            for row, tail_output, tail_log_sum in tail_parts:
                mass = (tail_log_sum - total).exp_()
                block_output.addcmul_(tail_output, mass.unsqueeze(-1))
                if block_shares is not None:
                    block_shares[..., row] += mass
            if mixed is not None and shares is not None and block_shares is not None:
                shares[:, :, at] = block_shares
                added = block_shares @ mixed
                block_output += added if gate is None else added.mul_(gate[:, :, at])
            output[:, :, at] = block_output
            log_sum[:, :, at] = total
        ctx.save_for_backward(
            query, key, value, rows, gate, padding, mixed, output, log_sum, shares, probe_output, probe_log_sum
        )
        ctx.layout = layout
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with eager.full_precision(grad.device):
            return _backward(ctx.layout, grad, ctx.needs_input_grad[3], *ctx.saved_tensors)


def _backward(
    layout: _Layout,
    grad: Tensor,
    rows_learn: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    gate: Tensor | None,
    padding: Tensor | None,
    mixed: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    shares: Tensor | None,
    probe_output: Tensor | None,
    probe_log_sum: Tensor | None,
) -> tuple[Tensor | None, ...]:
    k, scale = layout.k, layout.scale
    grad_query, grad_key, grad_value = (_zeros_like(states) for states in (query, key, value))
    grad_rows = torch.empty_like(rows, memory_format=torch.contiguous_format) if rows_learn else None
    grad_gate = grad_mixed = None
    expected = (grad * output).sum(-1, keepdim=True)
    # The gradient of a pair's weight, less its expectation: grad . value_j, plus a row over offsets.
    by_offset = -expected
    if mixed is not None and shares is not None:
        by_offset = grad @ mixed.transpose(-1, -2)
        if gate is not None:
            grad_gate = (by_offset * shares).sum(-1, keepdim=True)
            by_offset = by_offset.mul_(gate)
        gated = grad if gate is None else grad * gate
        grad_mixed = (shares.transpose(-1, -2) @ gated).sum(0)
        by_offset = by_offset - expected
    shown = (_hide_later(rows, k) if layout.causal else rows) - log_sum.unsqueeze(-1)
    for at, window, first, tails in layout.blocks():
        states, grads = query[:, :, at], grad[:, :, at]
        weights = _window(states, key[:, :, window], shown[:, :, at], first, padding, window, scale).exp_()
        grad_scores = _window(grads, value[:, :, window], by_offset[:, :, at], first, None, window, 1.0).mul_(weights)
        grad_value[:, :, window] += weights.transpose(-1, -2) @ grads
        grad_key[:, :, window].add_(grad_scores.transpose(-1, -2) @ states, alpha=scale)
        block_grad = (grad_scores @ key[:, :, window]).mul_(scale)
        row_grad = collect(grad_scores, k, first) if rows_learn else None
        for row, keys in tails:
            shared = output[:, :, at]
            if mixed is not None:
                vector = mixed[:, row].unsqueeze(-2)
                shared = shared - (vector if gate is None else vector * gate[:, :, at])
            tail_query, tail_key, tail_value = _backward_operator(
                grads,
                states,
                key[:, :, keys],
                value[:, :, keys],
                shared,
                log_sum[:, :, at] - rows[:, :, at, row],
                0.0,
                False,
                attn_mask=_tail_mask(padding, states, keys),
                scale=scale,
            )
            block_grad += tail_query
            grad_key[:, :, keys] += tail_key
            grad_value[:, :, keys] += tail_value
        grad_query[:, :, at] = block_grad
        if grad_rows is not None and row_grad is not None:
            if tails and probe_output is not None and probe_log_sum is not None:
                mass = (probe_log_sum[:, :, at] - log_sum[:, :, at]).exp_()
                per_key = (grads * probe_output[:, :, at]).sum(-1) + by_offset[:, :, at, tails[0][0]]
                row_grad[..., tails[0][0]] += mass * per_key
            if len(tails) > 1:
                row_grad[..., -1] -= row_grad.sum(-1)
            grad_rows[:, :, at] = row_grad
    return grad_query, grad_key, grad_value, grad_rows, grad_gate, None, grad_mixed, None


def _operator(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **kwargs)


def _backward_operator(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*args, **kwargs)


def _tail(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, keys: slice, scale: float
) -> tuple[Tensor, Tensor]:
    """Plain attention to a tail: its output, and its log-sum-exp, -inf where all its keys are padding."""
    mask = _tail_mask(padding, query, keys)
    output, log_sum = _operator(query, key, value, 0.0, False, attn_mask=mask, scale=scale)
    if padding is not None:
        # The operator reports 0 for a query that sees nothing.
        log_sum = log_sum.masked_fill((padding[..., keys] != 0).all(-1), float("-inf"))
    return output, log_sum


def _tail_mask(padding: Tensor | None, query: Tensor, keys: slice) -> Tensor | None:
    return None if padding is None else padding[..., keys].expand(-1, 1, query.shape[2], -1)


def _window(
    left: Tensor, right: Tensor, rows: Tensor, first: int, padding: Tensor | None, window: slice, scale: float
) -> Tensor:
    """``scale * left_i . right_j`` plus row ``i`` at the offset of ``j``, for a window."""
    batch, heads, queries, _ = left.shape
    keys = right.shape[2]
    added = spread(rows, keys, first).expand(batch, heads, queries, keys)
    products = torch.baddbmm(
        added.reshape(batch * heads, queries, keys),
        left.reshape(batch * heads, queries, -1),
        right.transpose(-1, -2).reshape(batch * heads, -1, keys),
        alpha=scale,
    ).unflatten(0, (batch, heads))
    return products if padding is None else products.add_(padding[..., window])


def _hide_later(rows: Tensor, k: int) -> Tensor:
    """The rows with the offsets of later keys at -inf."""
    hidden = rows.clone(memory_format=torch.contiguous_format)
    hidden[..., k + 1 :] = float("-inf")
    return hidden


def _zeros_like(states: Tensor) -> Tensor:
    """Zeros, laid out as attention's inputs come from their projections: all heads of a token together."""
    return torch.zeros_like(states.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
