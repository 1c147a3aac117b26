"""The tails of a call: plain attention by PyTorch's fused operator, plus a number per query.

In a tail all relative terms are constant for a query, so its log-sum-exp is shifted by a number, and all its pairs
share a value vector. Parts of the keys merge by their log-sum-exps. The backward pass calls the operator's own backward
with the merged statistics: given the log-sum-exp less the query's number, it finds the merged weights again; given the
output less the value vector that all pairs of the tail share, it finds their gradients.

The value vector that all pairs share, left and right, is left out of every output here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.engines.cpu import operators as fused
from hf_relpos.engines.cpu.layout import Inputs, add_value, scratch_like
from hf_relpos.engines.cpu.tiles import Tail


def attend(
    inputs: Inputs, right_number: Tensor | None, output: Tensor, log_sum: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Merge all tails into the output of the windows, in place.

    Args:
        inputs: of the call.
        right_number: what is added to the scores of the right tails; broadcasts to ``[batch, heads, queries]``.
        output: of the windows, ``[batch, heads, queries, dim]``.
        log_sum: the log-sum-exp of the windows' scores, ``[batch, heads, queries]``.

    Returns:
        What the right tails give alone, and their log-sum-exp (minus infinity where a query has none); None and None if
        later keys are hidden.
    """
    left_number, scale = inputs.constant(right=False), inputs.plan.scale
    of_side = {False: (output, log_sum)}
    if not inputs.plan.causal:
        of_side[True] = torch.zeros_like(output), torch.full_like(log_sum, float("-inf"))
    for tail in inputs.plan.tails():
        more, more_log_sum = fused.attend(*_states(inputs, tail), _mask(inputs, tail), scale)
        if left_number is not None and not tail.right:
            more_log_sum += left_number
        side_output, side_log_sum = of_side[tail.right]
        _merge(side_output[:, :, tail.queries], side_log_sum[:, :, tail.queries], more, more_log_sum)
    if inputs.plan.causal:
        return None, None
    right_output, right_log_sum = of_side[True]
    if right_number is not None:
        right_log_sum += right_number
    add_value(right_output, _right_value(inputs), inputs.tables.gate, 1.0)
    _merge(output, log_sum, right_output, right_log_sum)
    return right_output, right_log_sum


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
    left_number = inputs.constant(right=False)
    of_side = {False: (output, log_sum if left_number is None else log_sum - left_number)}
    if not inputs.plan.causal:
        right_output = output
        if inputs.tables.value is not None:
            right_output = scratch_like("right output", output).copy_(output)
            add_value(right_output, _right_value(inputs), inputs.tables.gate, -1.0)
        of_side[True] = right_output, log_sum if right_number is None else log_sum - right_number
    for tail in inputs.plan.tails():
        side_output, side_log_sum = of_side[tail.right]
        query_part, key_part, value_part = fused.attend_backward(
            grad[:, :, tail.queries],
            *_states(inputs, tail),
            side_output[:, :, tail.queries],
            side_log_sum[:, :, tail.queries],
            _mask(inputs, tail),
            inputs.plan.scale,
        )
        grad_query[:, :, tail.queries] += query_part
        grad_key[:, :, tail.keys] += key_part
        grad_value[:, :, tail.keys] += value_part


def _merge(output: Tensor, log_sum: Tensor, more: Tensor, more_log_sum: Tensor) -> None:
    """Merge attention to more keys into an output and its log-sum-exp, in place."""
    output.lerp_(more, torch.sigmoid(more_log_sum - log_sum).unsqueeze(-1))
    log_sum.copy_(torch.logaddexp(log_sum, more_log_sum))


def _states(inputs: Inputs, tail: Tail) -> tuple[Tensor, Tensor, Tensor]:
    """A tail's queries, keys and values."""
    return inputs.query[:, :, tail.queries], inputs.key[:, :, tail.keys], inputs.value[:, :, tail.keys]


def _mask(inputs: Inputs, tail: Tail) -> Tensor | None:
    """The padding of a tail, as the fused operator takes it."""
    if inputs.hidden is None:
        return None
    return inputs.hidden[..., tail.keys].expand(-1, 1, tail.queries.stop - tail.queries.start, -1)


def _right_value(inputs: Inputs) -> Tensor | None:
    """The value vector of all pairs of right tails, ``[heads, 1, dim]``."""
    return None if inputs.tables.value is None else inputs.tables.value[:, -1:]
