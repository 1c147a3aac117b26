"""What relative positions add to the scores while a model reads, by offset.

A bias is the same for every text, but what vectors add depends on the queries and keys that they meet: on the mean over
many of them the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.engines.eager import per_head, relative_scores
from hf_relpos.engines.offsets import collect
from hf_relpos.inspection.hooks import hooked
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling.stacks import stacks_of


@contextmanager
def watched(model: Any, farthest: int) -> Iterator[dict[nn.Module, Tensor]]:
    """While this lasts, sums up what relative positions add to the scores of each attention module of a patched model.

    Args:
        model: reads one text.
        farthest: the largest offset.

    Yields:
        The sums over all pairs of tokens at each of the offsets ``-farthest .. farthest``, ``[heads, 2 * farthest +
        1]``; not a number where a decoder does not look.
    """
    sums: dict[nn.Module, Tensor] = {}
    running: list[Any] = []

    def begin(attention: nn.Module, arguments: tuple[Any, ...]) -> None:
        running[:] = [attention]

    def see(layer: RelPosLayer, arguments: tuple[AttentionCall, ...], made: Contribution) -> None:
        attention, call = running[0], arguments[0]
        scale = getattr(attention, "scaling", None) or call.query.shape[-1] ** -0.5
        total = collect(_added_scores(call, made, scale)[0], farthest + 1, 0).sum(1)[:, 1:-1]
        if model.relpos_family.geometry(attention).causal:
            total[:, farthest + 1 :] = torch.nan
        sums[attention] = total

    attentions = [attention for stack in stacks_of(model, model.relpos_family) for attention in stack.attentions]
    handles = [attention.register_forward_pre_hook(begin) for attention in attentions]
    try:
        with hooked((module, see) for module in model.modules() if isinstance(module, RelPosLayer)):
            yield sums
    finally:
        for handle in handles:
            handle.remove()


def pairs_at(rows: Sequence[Sequence[int]], farthest: int, like: Tensor) -> Tensor:
    """How many pairs of tokens of some texts are at each offset, ``[2 * farthest + 1]``."""
    offsets = torch.arange(-farthest, farthest + 1).abs()
    return sum(((len(ids) - offsets).clamp(min=0) for ids in rows), torch.zeros_like(offsets)).to(like)


def _added_scores(call: AttentionCall, made: Contribution, scale: float) -> Tensor:
    """What a layer's schemes add to the scores ``[batch, heads, queries, keys]``: by their terms, and by a rotation."""
    heads = call.query.shape[1]
    query, key = made.query.float(), per_head(made.key.float(), heads)
    terms = made.terms._replace(native_bias=None).to(torch.float32)
    gate = None if terms.gate is None else terms.gate[..., None]
    scores = query.new_zeros(*query.shape[:3], key.shape[2])
    relative = relative_scores(query * scale, key, terms, gate, 0, scale)
    if relative is not None:
        scores = scores + relative
    if made.query is not call.query:
        before = call.query.float() @ per_head(call.key.float(), heads).transpose(-1, -2)
        scores = scores + (query @ key.transpose(-1, -2) - before) * scale
    return scores
