"""What the project asks of itself: the largest ratios to the same work without relative positions, by length."""

from __future__ import annotations

from collections.abc import Mapping

Limits = Mapping[int, float]

LENGTHS = (128, 512, 1024, 2048, 4096)


def _at(*ratios: float, lengths: tuple[int, ...] = LENGTHS) -> Limits:
    return dict(zip(lengths, ratios, strict=True))


# A training step, by family; and with dropout, which the unpatched model runs unfused. Of T5 the stock one is 1.
_STEP = {
    "bert": _at(1.06, 1.03, 1.03, 1.03, 1.03),
    "gpt2": _at(1.05, 1.00, 0.98, 0.98, 0.98),
    "t5": _at(0.85, 0.60, 0.45, 0.30, lengths=LENGTHS[1:]),
}
_STEP_WITH_DROPOUT = _at(1.00, 0.95, 0.90, lengths=LENGTHS[:3])

# Attention alone, without and with the backward pass: vectors per offset, biases, and both where later keys are hidden.
_VECTORS = _at(1.25, 1.10, 1.08, 1.05, 1.05)
_BIAS = _at(1.00, 1.00, 1.00, 1.00, 1.00)
_CAUSAL = _at(1.10, 0.85, 0.85, 0.90, 0.97)
UNDER_LOAD: Limits = {512: 1.5}

# Of the memory that a step adds; T5 may take a third of the stock one's at 4,096 tokens.
STEP_MEMORY, T5_MEMORY, T5_MEMORY_LENGTH = 1.03, 1 / 3, 4096
# Of the time of attention to all of `LONG` tokens, that with a window of 256, forward and backward.
WINDOWED, LONG = 1 / 6, 16_384
# Of the unpatched model's tokens per second, at least.
DECODING = 0.97


def of_step(family: str, dropout: float) -> Limits:
    """Those of a training step."""
    return _STEP_WITH_DROPOUT if dropout else _STEP[family]


def of_attention(scheme: str, causal: bool, load: int) -> Limits:
    """Those of attention alone, with so many busy processes beside it."""
    if load:
        return UNDER_LOAD
    if causal:
        return _CAUSAL
    return _VECTORS if scheme.startswith("Shaw") else _BIAS
