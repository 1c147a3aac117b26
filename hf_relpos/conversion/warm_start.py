"""Where the tables of a conversion start: what the original's positions do to the scores, as far as offsets tell it.

In a model with absolute positions the score of query i for key j has a part that depends on the two positions alone,
``scale * (q(i) - mean q) . (k(j) - mean k)``, where ``q(i)`` and ``k(j)`` are the query and key that a position has on
the average over all that can stand there. (Ke et al. 2021, "Rethinking Positional Encoding in Language Pre-training",
https://arxiv.org/abs/2006.15595, section 3.1, splits the score so for the first layer; the average extends it to all of
them, as positions pass on through the residual stream.) Its mean over equal offsets is the bias that a relative scheme
can have in its place. A model that has a bias over offsets already is simply read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.conversion.batches import Batch
from hf_relpos.conversion.reading import mean_of_states, on_device, read
from hf_relpos.engines.offsets import collect
from hf_relpos.families import Family
from hf_relpos.families.native import AbsoluteEmbedding
from hf_relpos.layer import RelPosLayer
from hf_relpos.masks import AttentionMask
from hf_relpos.modeling.sharing import relpos_of
from hf_relpos.modeling.stacks import stacks_of
from hf_relpos.terms import widen

_QUERIES = 64  # of each head, that a table is fitted on
_ITERATIONS = 30


@dataclass
class Seen:
    """What one attention layer of the original does with positions.

    Attributes:
        bias: ``[heads, 2k + 1]``, the part of its scores that depends on the offset alone, ``k`` the longest one seen.
        query: ``[heads, queries, head_dim]``, some queries.
        key: ``[heads, queries, head_dim]``, some keys.
        scale: of its scores.
    """

    bias: Tensor
    query: Tensor
    key: Tensor
    scale: float


@torch.no_grad()
def watch(model: PreTrainedModel, batches: Sequence[Batch]) -> list[Seen]:
    """What each self-attention layer of a patched model does with positions, in the order of its stacks.

    Args:
        model: patched, computing what the original does.
        batches: without padding, all of one length; none sees nothing.
    """
    if not batches:
        return []
    attentions = list(_attentions(model))
    absolute = any(rows is not None for _, rows in _positions(model, model.relpos_family))
    watched = [_Watched(float(attention.scaling), absolute) for attention in attentions]
    hooks = []
    turns: dict[nn.Module, list[_Watched]] = {}
    for place, attention in enumerate(attentions):
        layer: Any = relpos_of(attention)
        if layer not in turns:
            turns[layer] = []
            hooks.append(layer.register_forward_hook(_Dealer(turns[layer])))
        turns[layer].append(watched[place])
    try:
        for batch in batches:
            read(model, on_device(batch, model), mean_of_states)
    finally:
        for hook in hooks:
            hook.remove()
    return [one.seen() for one in watched]


class _Dealer:
    """Gives the calls of a layer's relative positions, which several attentions may share, to each in turn."""

    def __init__(self, watched: list[_Watched]) -> None:
        self._watched = watched
        self._calls = 0

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], made: Contribution) -> None:
        self._watched[self._calls % len(self._watched)].add(arguments[0], made)
        self._calls += 1


class _Watched:
    """Sums over what one attention layer was called with, in two halves.

    Queries of one half meet keys of the other: what they have in common is their position, not their text.

    Args:
        scale: of its scores.
        absolute: whether queries and keys know where they stand.
    """

    def __init__(self, scale: float, absolute: bool) -> None:
        self._scale = scale
        self._absolute = absolute
        self._query: list[Any] = [0, 0]
        self._key: list[Any] = [0, 0]
        self._rows = [0, 0]
        self._last: Any = None

    def add(self, call: AttentionCall, made: Contribution) -> None:
        for half, rows in enumerate((slice(0, None, 2), slice(1, None, 2))):
            self._rows[half] += len(call.query[rows])
            self._query[half] = self._query[half] + call.query[rows].float().sum(0)
            self._key[half] = self._key[half] + call.key[rows].float().sum(0)
        self._last = (call, made)

    def seen(self) -> Seen:
        call, made = self._last
        length = call.query.shape[2]
        bias = self._from_positions(length) if self._absolute else call.query.new_zeros(1, 2 * length - 1)
        for table in (made.terms.bias, made.terms.native_bias):
            if table is not None:
                bias = bias + _cut(table.float(), length - 1)
        some = torch.linspace(0, length - 1, min(length, _QUERIES)).long()
        return Seen(bias, call.query[0, :, some].float(), call.key[0, :, some].float(), self._scale)

    def _from_positions(self, length: int) -> Tensor:
        """The mean over equal offsets of what two positions add to a score, ``[heads, 2 * length - 1]``."""
        queries, keys = ([_centred(total / rows) for total, rows in zip(sums, self._rows, strict=True)]
                         for sums in (self._query, self._key))  # fmt: skip
        scores = (queries[0] @ keys[1].transpose(1, 2) + queries[1] @ keys[0].transpose(1, 2)) * self._scale / 2
        return collect(scores, length - 1, 0).sum(1) / _pairs(length).to(scores)


def _centred(means: Tensor) -> Tensor:
    """Vectors ``[heads, positions, head_dim]`` less their mean over the positions."""
    return means - means.mean(1, keepdim=True)


def start_tables(student: PreTrainedModel, seen: list[Seen]) -> None:
    """Fit a fresh patch's tables to what was seen, in place: least squares over offsets, as often as each occurs.

    What acts on values, and schemes that learn nothing, stay as they are.
    """
    fitted: dict[RelPosLayer, list[Seen]] = {}
    causal: dict[RelPosLayer, bool] = {}
    for attention, one in zip(_attentions(student), seen, strict=True):
        layer = relpos_of(attention)
        if layer is not None and len(layer.schemes):
            fitted.setdefault(layer, []).append(one)
            causal[layer] = student.relpos_family.geometry(attention).causal
    for layer, several in fitted.items():
        _fit(layer, several, causal[layer])


def _fit(layer: RelPosLayer, seen: list[Seen], causal: bool) -> None:
    length = seen[0].bias.shape[1] // 2 + 1
    pairs = _pairs(length)
    if causal:
        pairs = torch.where(torch.arange(1 - length, length) > 0, 0, pairs)
    share = pairs / pairs.sum()
    learned = [parameter for scheme in layer.schemes for parameter in scheme.parameters()]

    def loss() -> Any:
        total: Any = 0.0
        for one in seen:
            call = AttentionCall(one.query[None], one.key[None], one.key[None], AttentionMask(length, length))
            terms = layer(call).terms
            score: Any = 0.0
            if terms.bias is not None:
                score = _cut(terms.bias, length - 1)[:, None]
            for vectors, table in ((one.query, terms.query), (one.key, terms.key)):
                if table is not None:
                    score = score + one.scale * vectors @ _cut(table, length - 1).transpose(1, 2)
            wanted = one.bias - (one.bias * share).sum(1, keepdim=True)  # a constant changes no weight
            total += ((score - wanted[:, None]).square() * share).sum(-1).mean()
        return total

    if not learned or not loss().requires_grad:
        return
    optimizer = torch.optim.LBFGS(learned, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def again() -> Any:
        layer.zero_grad()
        now = loss()
        now.backward()
        return now

    with torch.enable_grad():
        optimizer.step(again)
    layer.zero_grad()


@torch.no_grad()
def fold_mean_position(student: PreTrainedModel, original: PreTrainedModel) -> None:
    """Add the mean position vector, which every token had, to the embeddings of the tokens, in place.

    It goes into the token types where there are some, else into the words. Where words are tied to the head that
    predicts them, all its logits change by the same number, which changes no prediction. Where stacks with tables of
    their own share the words (BART), the mean of their means goes there.

    Args:
        student: of which the positions were dropped.
        original: which has them.
    """
    means: dict[nn.Parameter, list[Tensor]] = {}
    for path, rows in _positions(original, student.relpos_family):
        if rows is not None:
            embedding = _token_embedding(student, student.get_submodule(path))
            mean = rows.float().mean(0).to(embedding.weight) / getattr(embedding, "embed_scale", 1.0)
            means.setdefault(embedding.weight, []).append(mean)
    for weight, several in means.items():
        weight.add_(torch.stack(several).mean(0))


def _positions(model: nn.Module, family: Family) -> Iterator[tuple[str, Tensor | None]]:
    """Every module of a model that adds absolute positions: its path, and their rows; None where they were dropped."""
    for native in family.natives:
        if isinstance(native, AbsoluteEmbedding):
            for path, owner in native.owners(model, family.modeling):
                yield path, native.rows(owner)


def _token_embedding(model: PreTrainedModel, owner: nn.Module) -> Any:
    """The embedding that is added to the positions of a module and can take something from them."""
    for name in ("token_type_embeddings", "word_embeddings"):
        if isinstance(getattr(owner, name, None), nn.Embedding):
            return getattr(owner, name)
    return (owner if isinstance(owner, PreTrainedModel) else model).get_input_embeddings()


def _attentions(model: Any) -> Iterator[Any]:
    for stack in stacks_of(model, model.relpos_family):
        yield from stack.attentions


def _pairs(length: int) -> Tensor:
    """How many pairs of a sequence have each of the offsets ``1 - length .. length - 1``."""
    return length - torch.arange(1 - length, length).abs()


def _cut(table: Tensor, k: int) -> Tensor:
    """A table ``[heads, offsets, ...]`` over the offsets ``-k .. k``."""
    own = table.shape[1] // 2
    return widen(table, k) if own <= k else table[:, own - k : own + k + 1]
