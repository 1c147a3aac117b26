"""PyTorch's fused attention for the CPU, with the log-sum-exp and the backward pass that the public function hides."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from transformers.utils import logging

logger = logging.get_logger(__name__)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Plain attention.

    Args:
        query: ``[batch, heads, queries, dim]``.
        key: ``[batch, heads, keys, dim]``.
        value: like ``key``.
        mask: added to the scores, ``[batch or 1, heads or 1, queries, keys]``, any strides; or None.
        scale: factor of the scores' dot products.

    Returns:
        The output and the log-sum-exp ``[batch, heads, queries]``. For a query whose keys are all at -inf they are
        zero, both.
    """
    query, key, value = map(_readable, (query, key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=mask, scale=scale
    )  # fmt: skip


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, for whatever output and log-sum-exp it is told.

    With ``weights = exp(scores - log_sum)``, the gradient of a score is ``weights * (grad . value - grad . output)``.
    """
    grad, query, key, value, output = map(_readable, (grad, query, key, value, output))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, log_sum, 0.0, False, attn_mask=mask, scale=scale
    )  # fmt: skip


def _readable(states: Tensor) -> Tensor:
    """The operators take any strides but the last one for granted."""
    return states if states.stride(-1) == 1 else states.contiguous()


@cache
def is_sound() -> bool:
    """Whether these operators, which are not public and may change, still do what the engines need of them.

    Asked once per process: attention in two parts that merge, forward and backward, against the same in one piece.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad():
            difference = _difference_on_a_small_case()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if difference < 1e-10:
            return True
        reason = f"results differ by {difference:.1e}"
    logger.warning_once(
        f"hf_relpos: the fused attention operator of PyTorch {torch.__version__} is not what the engines 'banded' and "
        f"'toeplitz' need ({reason}); the other engines run instead."
    )
    return False


def _difference_on_a_small_case() -> float:
    """The largest difference among the output and all gradients. Draws no random numbers."""

    def numbers(*shape: int) -> Tensor:
        steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device="cpu")
        return (steps * 0.7 + len(shape)).sin().reshape(shape)

    length, split, scale, shift = 12, 5, 0.5, 0.8
    states = [(numbers(2, 2, length, 4) + place).requires_grad_() for place in range(3)]
    query, key, value = states
    # A strided view, as `toeplitz` uses it.
    mask = numbers(1, 2, 2 * length - 1).as_strided((1, 2, length, length), (0, 2 * length - 1, 1, 1))
    scores = scale * query @ key.transpose(-1, -2) + mask
    scores = torch.cat([scores[..., :split], scores[..., split:] + shift], dim=-1)
    expected = scores.softmax(-1) @ value
    grad = numbers(*expected.shape).cos()
    expected_grads = torch.autograd.grad(expected, states, grad)

    query, key, value = (state.detach() for state in states)
    halves = [(slice(0, split), 0.0), (slice(split, length), shift)]
    parts = [attend(query, key[:, :, at], value[:, :, at], mask[..., at], scale) for at, _ in halves]
    total = torch.logaddexp(parts[0][1], parts[1][1] + shift)
    output = torch.zeros_like(query)
    for (part, log_sum), (_, more) in zip(parts, halves, strict=True):
        output += (log_sum + more - total).exp().unsqueeze(-1) * part
    differences = [output - expected.detach()]
    grad_query = torch.zeros_like(query)
    for at, more in halves:
        part_query, part_key, part_value = attend_backward(
            grad, query, key[:, :, at], value[:, :, at], output, total - more, mask[..., at], scale
        )
        grad_query += part_query
        differences += [part_key - expected_grads[1][:, :, at], part_value - expected_grads[2][:, :, at]]
    differences.append(grad_query - expected_grads[0])
    return max(float(difference.abs().max()) for difference in differences)
