"""PyTorch's fused attention, with the log-sum-exp and the backward pass that the public function hides."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Off the CPU, log-sum-exps have room for a multiple of so many queries.
LOG_SUM_ROOM = 32


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Plain attention.

    Args:
        query: ``[batch, heads, queries, dim]``.
        key: ``[batch, heads, keys, dim]``.
        value: like ``key``.
        mask: added to the scores, ``[batch or 1, heads or 1, queries, keys]``, any strides, finite; or None. On the
            CPU only.
        scale: factor of the scores' dot products.

    Returns:
        The output and the log-sum-exp ``[batch, heads, queries]``.
    """
    query, key, value = map(_readable, (query, key, value))
    if query.device.type != "cpu":
        output, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, True, 0.0, False, scale=scale
        )  # fmt: skip
        # It comes with room for more queries than there are.
        return output, log_sum[..., : query.shape[2]]
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
    if query.device.type != "cpu":
        log_sum = F.pad(log_sum, (0, -log_sum.shape[-1] % LOG_SUM_ROOM))
        unused = torch.zeros((), dtype=torch.int64, device=query.device)  # the random state of dropout
        wanted = [True, True, True, False]
        return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, query, key, value, mask, output, log_sum, unused, unused, 0.0, wanted, False, scale=scale
        )[:3]  # fmt: skip
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, log_sum, 0.0, False, attn_mask=mask, scale=scale
    )  # fmt: skip


def _readable(states: Tensor) -> Tensor:
    """The operators take any strides but the last one for granted."""
    return states if states.stride(-1) == 1 else states.contiguous()


@cache
def is_sound(device: str) -> bool:
    """Whether a device's operators, which are not public and may change, still do what the engines need of them.

    Asked once per process and type of device: attention in two parts that merge, forward and backward, against the
    same in one piece.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad():
            difference = _difference_on_a_small_case(device)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if difference < (1e-10 if device == "cpu" else 1e-4):
            return True
        reason = f"results differ by {difference:.1e}"
    logger.warning_once(
        f"hf_relpos: the fused attention operator of PyTorch {torch.__version__} on {device!r} is not what the engines "
        f"'banded' and 'toeplitz' need ({reason}); the other engines run instead."
    )
    return False


def _difference_on_a_small_case(device: str) -> float:
    """The largest difference among the output and all gradients. Draws no random numbers."""

    def numbers(*shape: int) -> Tensor:
        steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device="cpu")
        values = (steps * 0.7 + len(shape)).sin().reshape(shape)
        return values if device == "cpu" else values.to(device, torch.float32)

    length, split, scale, shift = 12, 5, 0.5, 0.8
    states = [(numbers(2, 2, length, 8) + place).requires_grad_() for place in range(3)]
    query, key, value = states
    # A strided view, as `toeplitz` uses it.
    mask = numbers(1, 2, 2 * length - 1).as_strided((1, 2, length, length), (0, 2 * length - 1, 1, 1))
    scores = scale * query @ key.transpose(-1, -2)
    if device == "cpu":
        scores = scores + mask
    scores = torch.cat([scores[..., :split], scores[..., split:] + shift], dim=-1)
    expected = scores.softmax(-1) @ value
    grad = numbers(*expected.shape).cos()
    expected_grads = torch.autograd.grad(expected, states, grad)

    query, key, value = (state.detach() for state in states)
    halves = [(slice(0, split), 0.0), (slice(split, length), shift)]
    masks = [mask[..., at] if device == "cpu" else None for at, _ in halves]
    parts = [
        attend(query, key[:, :, at], value[:, :, at], half, scale) for (at, _), half in zip(halves, masks, strict=True)
    ]
    total = torch.logaddexp(parts[0][1], parts[1][1] + shift)
    output = torch.zeros_like(query)
    for (part, log_sum), (_, more) in zip(parts, halves, strict=True):
        output += (log_sum + more - total).exp().unsqueeze(-1) * part
    differences = [output - expected.detach()]
    grad_query = torch.zeros_like(query)
    for (at, more), half in zip(halves, masks, strict=True):
        part_query, part_key, part_value = attend_backward(
            grad, query, key[:, :, at], value[:, :, at], output, total - more, half, scale
        )
        grad_query += part_query
        differences += [part_key - expected_grads[1][:, :, at], part_value - expected_grads[2][:, :, at]]
    differences.append(grad_query - expected_grads[0])
    return max(float(difference.abs().max()) for difference in differences)
