"""Numbers that users give, and numbers that parameters hold."""

from __future__ import annotations

from torch import Tensor, nn


def is_number(value: object) -> bool:
    """Numbers from a YAML file may have come as text: ``1e-3`` is one there, for want of a point."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(parameter: nn.Parameter) -> Tensor:
    """A parameter's value; of one that FSDP2 shards, a process holds only a part, so the others' are gathered."""
    value = parameter.detach()
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()
