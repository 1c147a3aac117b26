"""One query, the last of its keys: a step of generation with a growing cache.

The offsets are those from the first key up to 0, whatever the length, so the tables' entries meet the last keys in
order: nothing is laid out, and what older keys share is a constant that changes no weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.engines import eager
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, horizon


def takes(query: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> bool:
    """Whether this is such a step."""
    return (
        not torch.compiler.is_compiling()  # it would compile once more for the last place in a cache
        and query.shape[2] == 1
        and isinstance(mask.query_offset, int)
        and mask.query_offset == mask.key_length - 1
        and mask.window is None
        and mask.pattern is None
        and mask.dense is None
        and terms.key is None
        and dropout == 0
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, *, scale: float
) -> tuple[Tensor, None]:
    """Attention with relative terms for all that :func:`takes` names.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights.
    """
    out_dtype = query.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    with eager.full_precision(query.device):
        query, key, value = (eager.per_head(states.to(dtype), query.shape[1]) for states in (query, key, value))
        gate = None if terms.gate is None else terms.gate.to(dtype).unsqueeze(-1)
        query = query * scale
        scores = query @ key.transpose(-1, -2)
        if terms.query is not None:
            table = _last(terms.query.to(dtype), mask.key_length)
            _add(scores, query @ table.transpose(-1, -2), gate)
        if terms.bias is not None:
            _add(scores, _last(terms.bias.to(dtype), mask.key_length).unsqueeze(1), gate)
        if terms.native_bias is not None:
            _add(scores, _last(terms.native_bias.to(dtype), mask.key_length).unsqueeze(1), None)
        if mask.padding is not None:
            scores = scores.masked_fill(~mask.padding[:, None, None], torch.finfo(dtype).min)
        weights = scores.softmax(-1)
        output = weights @ value
        if terms.value is not None:
            table = terms.value.to(dtype)
            near = _last(table, mask.key_length)
            mixed = weights[..., mask.key_length - near.shape[1] :] @ near + table[:, :1]
            output = output + (mixed if gate is None else gate * mixed)
        if mask.padding is not None:
            # The softmax of a query that sees no key is made of nothing.
            output = output.masked_fill(~mask.padding.any(-1)[:, None, None, None], 0.0)
    return output.to(out_dtype), None


def _last(table: Tensor, keys: int) -> Tensor:
    """The entries for the last keys, up to offset 0, less the one that all older keys share."""
    k = horizon(table)
    return table[:, k + 1 - min(k, keys) : k + 1] - table[:, :1]


def _add(scores: Tensor, numbers: Tensor, gate: Tensor | None) -> None:
    """Add ``[..., 1, some]`` to the scores of the last keys ``[..., 1, keys]``."""
    scores[..., scores.shape[-1] - numbers.shape[-1] :] += numbers if gate is None else gate * numbers
