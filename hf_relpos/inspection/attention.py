"""How much a model's attention goes by positions while it reads: its weights, and those without its positions.

The model reads each text as it is, then without the relative terms in any layer, then without the positions it was
pretrained with. What its attention weights are each time, by head, is all that is measured; so it means the same for
every scheme and every family.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.engines.offsets import collect
from hf_relpos.families.native import AbsoluteEmbedding, NativeTable
from hf_relpos.inspection.hooks import hooked
from hf_relpos.inspection.parameters import FARTHEST, filled_up, layer_name
from hf_relpos.inspection.scores import pairs_at, watched
from hf_relpos.layer import RelPosLayer
from hf_relpos.modeling.sharing import relpos_of
from hf_relpos.modeling.stacks import stacks_of
from hf_relpos.terms import RelativeTerms

# How a text is read.
AS_IT_IS = "as it is"
WITHOUT_RELATIVE = "without the relative terms"
WITHOUT_NATIVE = "without the pretrained positions"


@dataclass(frozen=True)
class AttentionUse:
    """What positions do to the attention of each layer and head, as means over all tokens of some texts.

    Heads that a layer does not have are not a number.

    Attributes:
        layers: Names of the layers with relative positions, in order.
        texts: How many texts were read.
        tokens: How many tokens, special ones included.
        farthest: The largest offset in ``mass``.
        mass: By how the texts were read, the attention that goes to each of the offsets ``-farthest .. farthest``,
            ``[layers, heads, 2 * farthest + 1]``. A head's sum is at most 1; the rest goes farther.
        added: What relative positions add to the score of a key at each of these offsets, mean over the pairs of tokens
            that far apart, ``[layers, heads, 2 * farthest + 1]``; not a number where a decoder does not look.
        moved: By what was taken away, the share of the attention that then goes elsewhere, from 0 to 1, ``[layers,
            heads]``: half the sum of the absolute differences of a token's weights (their total variation distance).
    """

    layers: list[str]
    texts: int
    tokens: int
    farthest: int
    mass: dict[str, np.ndarray]
    added: np.ndarray
    moved: dict[str, np.ndarray]

    @property
    def relative_share(self) -> np.ndarray | None:
        """Of what both kinds of positions move, the share that the relative terms move, ``[layers, heads]``.

        1 is all relative, 0 all pretrained; not a number where neither moves anything. None without pretrained ones.
        """
        if WITHOUT_NATIVE not in self.moved:
            return None
        relative, native = self.moved[WITHOUT_RELATIVE], self.moved[WITHOUT_NATIVE]
        both = relative + native
        return np.divide(relative, both, out=np.full_like(both, np.nan), where=both > 0)


@torch.no_grad()
def measure_attention(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> AttentionUse:
    """Read texts with a patched model and compare its attention weights.

    Args:
        model: in eval mode.
        rows: the token ids of each text, special ones included. An encoder-decoder writes the text it reads.
    """
    inner: Any = model.base_model
    farthest = min(FARTHEST, max(map(len, rows)) - 1)
    ways: dict[str, Callable[[Any], AbstractContextManager[None]]] = {WITHOUT_RELATIVE: without_relative}
    if has_native(inner):
        ways[WITHOUT_NATIVE] = without_native
    mass: dict[str, list[Any]] = {}
    moved: dict[str, list[Any]] = {}
    paths = {module: path for path, module in inner.named_modules()}
    tokens = sum(map(len, rows))
    added: list[Any] | None = None
    for ids in rows:
        with watched(inner, farthest) as scores:
            whole = _weights(inner, ids)
        added = _added(added, [scores[attention] for attention, _, _ in _acting(inner)])
        mass[AS_IT_IS] = _added(mass.get(AS_IT_IS), [_by_offset(weights, farthest) for weights in whole])
        for way, taken_away in ways.items():
            with taken_away(inner):
                less = _weights(inner, ids)
            mass[way] = _added(mass.get(way), [_by_offset(weights, farthest) for weights in less])
            pairs = zip(whole, less, strict=True)
            moved[way] = _added(moved.get(way), [(one - other).abs().sum((1, 2)) / 2 for one, other in pairs])
    return AttentionUse(
        layers=[layer_name(paths[attention]) for attention, _, _ in _acting(inner)],
        texts=len(rows),
        tokens=tokens,
        farthest=farthest,
        mass={way: filled_up([_array(one / tokens) for one in sums]) for way, sums in mass.items()},
        added=filled_up([_array(sums / pairs_at(rows, farthest, sums)) for sums in added or ()]),
        moved={way: filled_up([_array(one / tokens) for one in sums]) for way, sums in moved.items()},
    )


@contextmanager
def without_relative(model: nn.Module) -> Iterator[None]:
    """While this lasts, a patched model has no relative positions: no tables, no rotation, no branch.

    A window stays.
    """

    def plain(layer: RelPosLayer, arguments: tuple[AttentionCall, ...], made: Contribution) -> Contribution:
        call = arguments[0]
        return Contribution(RelativeTerms(native_bias=made.terms.native_bias), call.query, call.key)

    with hooked((module, plain) for module in model.modules() if isinstance(module, RelPosLayer)):
        yield


@contextmanager
def without_native(model: Any) -> Iterator[None]:
    """While this lasts, a patched model does without the positions it was pretrained with.

    Each token gets the mean of the position vectors of its text, and no score a native bias.
    """

    def unbiased(layer: RelPosLayer, arguments: tuple[AttentionCall, ...], made: Contribution) -> Contribution:
        return made._replace(terms=made.terms._replace(native_bias=None))

    def mean(table: nn.Module, arguments: tuple[Any, ...], rows: Tensor) -> Tensor:
        return rows.mean(-2, keepdim=True).expand_as(rows)

    tables = [
        (table, mean)
        for native in model.relpos_family.natives
        if isinstance(native, AbsoluteEmbedding)
        for _, owner in native.owners(model, model.relpos_family.modeling)
        if (table := native.table_of(owner)) is not None
    ]
    layers = [(module, unbiased) for module in model.modules() if isinstance(module, RelPosLayer)]
    with hooked([*tables, *layers]):
        yield


def has_native(model: Any) -> bool:
    """Whether a patched model has pretrained positions that can be taken away for a while."""
    tables = [native for native in model.relpos_family.natives if isinstance(native, NativeTable)]
    return bool(tables) and model.config.relpos["native"] != "drop"


def _weights(model: Any, ids: Sequence[int]) -> list[Tensor]:
    """The attention weights ``[heads, length, length]`` of each layer with relative positions."""
    given = torch.tensor([list(ids)], device=model.device)
    inputs: dict[str, Any] = {"input_ids": given}
    if _writes(model):
        start = given.new_tensor([[model.config.decoder_start_token_id]])
        inputs["decoder_input_ids"] = torch.cat([start, given[:, :-1]], dim=1)
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    out = model(**inputs, output_attentions=True)
    return [out[field][place][0].float() for _, field, place in _acting(model)]


def _acting(model: Any) -> Iterator[tuple[nn.Module, str, int]]:
    """The attention modules with relative positions, and where in the model's output their weights are."""
    for stack in stacks_of(model, model.relpos_family):
        field = "attentions"
        if _writes(model):
            field = "encoder_attentions" if stack.module is model.get_encoder() else "decoder_attentions"
        for place, attention in enumerate(stack.attentions):
            layer = relpos_of(attention)
            if layer is not None and len(layer.schemes):
                yield attention, field, place


def _writes(model: Any) -> bool:
    """Whether a model has a decoder beside its encoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False)) and model.get_encoder() is not model


def _by_offset(weights: Tensor, farthest: int) -> Tensor:
    """The sum over the queries of what goes to each offset up to the farthest, ``[heads, 2 * farthest + 1]``."""
    return collect(weights, farthest + 1, 0).sum(1)[:, 1:-1]


def _added(sums: list[Any] | None, more: list[Tensor]) -> list[Any]:
    return more if sums is None else [one + other for one, other in zip(sums, more, strict=True)]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
