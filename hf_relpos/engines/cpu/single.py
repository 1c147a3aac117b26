"""One query, the last of its keys: a step of generation with a growing cache.

The offsets are those from the first key up to 0, whatever the length, so the tables' entries meet the last keys in
order: nothing is laid out, and what older keys share is a constant that changes no weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.engines import eager
from hf_relpos.engines.engine import Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, horizon


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    mask = case.mask
    if torch.compiler.is_compiling():
        return "torch.compile"  # it would compile once more for the last place in a cache
    if case.queries != 1 or not isinstance(mask.query_offset, int) or mask.query_offset != mask.key_length - 1:
        return "more than the last query"
    if mask.window is not None or mask.pattern is not None or mask.dense is not None:
        return "masks other than causality and padding"
    if case.terms.key is not None:
        return "terms on the key"
    if case.dropout > 0:
        return "attention dropout"
    return None


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
    """Attention with relative terms for all that :func:`refuses` does not refuse.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights.
    """
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with eager.full_precision(query.device):
        terms = terms.to(dtype)
        if dtype != out_dtype:
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if key.shape[1] != query.shape[1]:
            key, value = eager.per_head(key, query.shape[1]), eager.per_head(value, query.shape[1])
        gate = None if terms.gate is None else terms.gate.unsqueeze(-1)
        query = query * scale
        scores = query @ key.transpose(-1, -2)
        if terms.query is not None:
            _add(scores, _product(query, terms.query.transpose(-1, -2)), gate)
        if terms.bias is not None:
            _add(scores, terms.bias.unsqueeze(1), gate)
        if terms.native_bias is not None:
            _add(scores, terms.native_bias.unsqueeze(1), None)
        if mask.hides_keys:
            scores = scores.masked_fill(~mask.padding[:, None, None], torch.finfo(dtype).min)  # type: ignore[index]
        weights = scores.softmax(-1)
        output = weights @ value
        if terms.value is not None:
            _accumulate(output, _mixed(weights, terms.value), gate)
        if mask.hides_keys:
            # The softmax of a query that sees no key is made of nothing.
            output = output.masked_fill(~mask.padding.any(-1)[:, None, None, None], 0.0)  # type: ignore[union-attr]
    return output if dtype == out_dtype else output.to(out_dtype), None


def _product(rows: Tensor, table: Tensor) -> Tensor:
    """``[batch, heads, 1, some]`` times a table ``[heads or 1, some, others]``; one for all heads is not repeated."""
    return rows @ (table[0] if len(table) == 1 else table)


def _last(table: Tensor, dim: int, keys: int) -> Tensor:
    """The entries for the last keys, up to offset 0; those of older keys are all the first one."""
    k = horizon(table, dim)
    count = min(k, keys)
    return table.narrow(dim, k + 1 - count, count)


def _add(scores: Tensor, rows: Tensor, gate: Tensor | None) -> None:
    """Add a table over offsets ``[..., 1, 2k + 1]`` to the scores ``[..., 1, keys]``, but for a constant, in place."""
    numbers = _last(rows, dim=-1, keys=scores.shape[-1]) - rows[..., :1]
    _accumulate(scores[..., scores.shape[-1] - numbers.shape[-1] :], numbers, gate)


def _mixed(weights: Tensor, table: Tensor) -> Tensor:
    """The vectors of a table ``[heads or 1, 2k + 1, dim]`` mixed by the weights ``[batch, heads, 1, keys]``."""
    last, far = _last(table, dim=1, keys=weights.shape[-1]), table[:, :1]
    # Weights sum to one.
    return _product(weights[..., weights.shape[-1] - last.shape[1] :], last - far) + far


def _accumulate(numbers: Tensor, more: Tensor, gate: Tensor | None) -> None:
    """Add more, times the gate, in place."""
    if gate is None:
        numbers.add_(more)
    else:
        numbers.addcmul_(more, gate)


ENGINE = Engine("single", attend, refuses, is_choice=False)
