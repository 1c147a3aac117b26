"""The record that stands between schemes and engines: tables over offsets, never a length-by-length matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RelativeTerms(NamedTuple):
    r"""What relative positions add to an attention layer.

    An offset is ``key position - query position``. A table over offsets with ``2k + 1`` rows stores offset ``o`` at
    row ``o + k`` and is constant beyond: offsets below ``-k`` read row 0, offsets above ``k`` the last one. With
    ``d = j - i``, query ``i`` scores key ``j`` as

    .. code-block:: text

        scale * (q_i . k_j  +  g_i * (q_i . query[d] + k_j . key[d]))  +  g_i * bias[d]  +  native_bias[d]

    and its output gains ``g_i * sum_j p_ij value[d]``, where ``p`` are the attention weights and ``g`` is ``gate``
    (1 if it is None).

    Attributes:
        bias: ``[heads or 1, 2k + 1]``, stands outside the scale.
        query: ``[heads or 1, 2k + 1, head_dim]``, multiplied with the query.
        key: ``[heads or 1, 2k + 1, head_dim]``, multiplied with the key.
        value: ``[heads or 1, 2k + 1, head_dim]``, mixed by the attention weights.
        gate: ``[batch or 1, heads, query length]``, how strongly each query uses the four terms above.
        native_bias: ``[heads or 1, 2k + 1]``, a bias the gate does not touch: the one a model was pretrained with.

    The tables may have different ``k``. Any of them may be None.
    """

    bias: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    gate: Tensor | None = None
    native_bias: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to add, so that plain attention is the answer."""
        return self.bias is self.query is self.key is self.value is self.native_bias is None

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The tables there are."""
        return tuple(tensor for name, tensor in self.named.items() if name != "gate")

    @property
    def named(self) -> dict[str, Tensor]:
        """The tables there are, and the gate, by name."""
        return {name: tensor for name, tensor in zip(self._fields, self, strict=True) if tensor is not None}

    def __add__(self, other: RelativeTerms) -> RelativeTerms:  # type: ignore[override]
        """The terms of two schemes that act together. Neither may be gated yet.

        Raises:
            ValueError: if one of the two already has a gate: a gate would then reach the other one's tables.
        """
        if self.gate is not None or other.gate is not None:
            raise ValueError("Terms are added before they are gated: one of the two has a `gate`.")
        return RelativeTerms(
            bias=add_tables(self.bias, other.bias),
            query=add_tables(self.query, other.query),
            key=add_tables(self.key, other.key),
            value=add_tables(self.value, other.value),
            native_bias=add_tables(self.native_bias, other.native_bias),
        )

    def scaled(self, factor: Tensor) -> RelativeTerms:
        """These terms times one factor per head, ``[heads]``. The native bias stays as it is."""

        def times(table: Tensor | None) -> Tensor | None:
            return None if table is None else table * factor.view(-1, *[1] * (table.ndim - 1)).to(table)

        return self._replace(
            bias=times(self.bias), query=times(self.query), key=times(self.key), value=times(self.value)
        )

    def with_native_bias(self, native_bias: Tensor) -> RelativeTerms:
        """These terms and a bias that no gate touches."""
        return self._replace(native_bias=add_tables(self.native_bias, native_bias))

    def to(self, dtype: torch.dtype) -> RelativeTerms:
        """These terms with every tensor in another dtype; themselves if that is so already."""
        is_so = [tensor is None or tensor.dtype == dtype for tensor in self]
        return self if all(is_so) else RelativeTerms(*[None if tensor is None else tensor.to(dtype) for tensor in self])


def horizon(table: Tensor, dim: int = 1) -> int:
    """The largest offset ``k`` that a table with ``2k + 1`` offsets along ``dim`` tells apart."""
    return (table.shape[dim] - 1) // 2


def widen(table: Tensor, to: int, dim: int = 1) -> Tensor:
    """The same table over the offsets ``-to .. to``, its edges repeated.

    Args:
        table: ``2k + 1`` offsets along ``dim``, with ``k <= to``.
        to: the new horizon.
        dim: where the offsets are.
    """
    rows = table.shape[dim]
    extra = to - horizon(table, dim)
    if type(extra) is not int:  # a record for other lengths, where it may be any number
        return table.index_select(dim, (torch.arange(2 * to + 1, device=table.device) - extra).clamp(0, rows - 1))
    if extra == 0:
        return table
    shape = list(table.shape)
    shape[dim] = extra
    first, last = table.narrow(dim, 0, 1), table.narrow(dim, rows - 1, 1)
    return torch.cat([first.expand(shape), table, last.expand(shape)], dim=dim)


def add_tables(first: Tensor | None, second: Tensor | None, dim: int = 1) -> Tensor | None:
    """The sum of two tables over offsets, at the larger of their horizons or beyond; None stands for no table."""
    if first is None or second is None:
        return second if first is None else first
    near, far = horizon(first, dim), horizon(second, dim)
    # Where a length is recorded, to be another one later, which of the two is larger may change: both go into the sum.
    k = max(near, far) if type(near) is type(far) is int else near + far
    return widen(first, k, dim) + widen(second, k, dim)
