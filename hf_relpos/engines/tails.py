"""The tails of a call: plain attention by PyTorch's fused operator, plus a number per query.

In a tail all relative terms are constant for a query, so its log-sum-exp is shifted by a number, and all its pairs
share a value vector. Parts of the keys merge by their log-sum-exps. The backward pass calls the operator's own backward
with the merged statistics: given the log-sum-exp less the query's number, it finds the merged weights again; given the
output less the value vector that all pairs of the tail share, it finds their gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.engines import fused
from hf_relpos.engines.layout import Inputs
from hf_relpos.engines.tiles import HIDDEN, Tail


def attend(
    inputs: Inputs,
    right_number: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    right_output: Tensor | None,
    right_log_sum: Tensor | None,
) -> None:
    """Merge all tails into the output of the windows, in place.

    Args:
        inputs: of the call.
        right_number: what is added to the scores of the right tails, ``[batch, heads, queries]``, or None.
        output: of the windows, ``[batch, heads, queries, dim]``.
        log_sum: the log-sum-exp of the windows' scores, ``[batch, heads, queries]``.
        right_output: becomes what the right tails give alone; zeros. None if that is not wanted.
        right_log_sum: the same of their log-sum-exp; minus infinity everywhere.
    """
    left_number, scale = inputs.constant(right=False), inputs.plan.scale
    for tail in inputs.plan.tails():
        query, key, value = _states(inputs, tail)
        more, more_log_sum = fused.attend(query, key, value, _mask(inputs, tail), scale)
        number = right_number if tail.right else left_number
        if number is not None:
            more_log_sum += _of(number, tail)
        more = _shift(inputs, more, tail.queries, right=tail.right, sign=1)
        whole, whole_log_sum = output, log_sum
        if tail.right and right_output is not None and right_log_sum is not None:
            whole, whole_log_sum = right_output, right_log_sum
        _merge(whole[:, :, tail.queries], whole_log_sum[:, :, tail.queries], more, more_log_sum)
    if right_output is not None and right_log_sum is not None:
        _merge(output, log_sum, right_output, right_log_sum)


def backward(
    inputs: Inputs,
    right_number: Tensor | None,
    grad: Tensor,
    output: Tensor,
    log_sum: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
) -> None:
    """Add what goes through the tails to the gradients of queries, keys and values; the tables' are not touched.

    Args:
        inputs: of the call.
        right_number: as in :func:`attend`.
        grad: the gradient of the output, ``[batch, heads, queries, dim]``; zeros where a query sees nothing.
        output: of the call.
        log_sum: the log-sum-exp of all scores, ``[batch, heads, queries]``.
        grad_query: where the gradients are added.
        grad_key: the same.
        grad_value: the same.
    """
    every = slice(0, inputs.plan.queries)
    outputs, numbers = {}, {False: inputs.constant(right=False), True: right_number}
    for tail in inputs.plan.tails():
        if tail.right not in outputs:
            outputs[tail.right] = _shift(inputs, output, every, right=tail.right, sign=-1)
        number = numbers[tail.right]
        tail_log_sum = log_sum[:, :, tail.queries]
        query_part, key_part, value_part = fused.attend_backward(
            grad[:, :, tail.queries],
            *_states(inputs, tail),
            outputs[tail.right][:, :, tail.queries],
            tail_log_sum if number is None else tail_log_sum - _of(number, tail),
            _mask(inputs, tail),
            inputs.plan.scale,
        )
        grad_query[:, :, tail.queries] += query_part
        grad_key[:, :, tail.keys] += key_part
        grad_value[:, :, tail.keys] += value_part


def _states(inputs: Inputs, tail: Tail) -> tuple[Tensor, Tensor, Tensor]:
    """A tail's queries, keys and values."""
    return inputs.query[:, :, tail.queries], inputs.key[:, :, tail.keys], inputs.value[:, :, tail.keys]


def _of(number: Tensor, tail: Tail) -> Tensor:
    """The numbers of a tail's queries; one for all of a head's stays."""
    return number[..., tail.queries] if number.shape[-1] > 1 else number


def _mask(inputs: Inputs, tail: Tail) -> Tensor | None:
    """The padding of a tail, as the fused operator takes it."""
    if inputs.padding is None:
        return None
    padding = inputs.padding[:, None, None, tail.keys]
    mask = inputs.query.new_zeros(padding.shape).masked_fill_(~padding, HIDDEN)
    return mask.expand(-1, 1, tail.queries.stop - tail.queries.start, -1)


def _shift(inputs: Inputs, output: Tensor, queries: slice, *, right: bool, sign: int) -> Tensor:
    """An output of some queries plus or less the value vector that all pairs of a tail share."""
    tables = inputs.tables
    shared = None if tables.far_value is None else tables.far_value.unsqueeze(1)
    if right and tables.value is not None:
        shared = tables.value[:, -1:] if shared is None else shared + tables.value[:, -1:]
    if shared is None:
        return output
    if tables.gate is None:
        return torch.add(output, shared, alpha=sign)
    return torch.addcmul(output, shared, tables.gate[:, :, queries, None], value=sign)


def _merge(output: Tensor, log_sum: Tensor, more: Tensor, more_log_sum: Tensor) -> None:
    """Merge attention to more keys into an output and its log-sum-exp, in place."""
    output.lerp_(more, torch.sigmoid(more_log_sum - log_sum).unsqueeze(-1))
    log_sum.copy_(torch.logaddexp(log_sum, more_log_sum))
