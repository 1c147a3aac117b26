"""Attention by a formula that a test writes out: in a stock model, and beside one layer of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tiny
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from hf_relpos import RelPosConfig
from hf_relpos.engines import attend
from hf_relpos.layer import RelPosLayer
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import AttentionCall, AttentionGeometry

# From query, key, value, offsets [queries, keys], hidden (bool, broadcastable to the scores), scale: the output.
Formula = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]

NAME = "by_formula"


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    queries, keys = query.shape[2], key.shape[2]
    offsets = torch.arange(keys) - (torch.arange(queries) + keys - queries)[:, None]
    hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool) if attention_mask is None else attention_mask < -1e30
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = module.__dict__["formula"](query, key, value, offsets, hidden, scale)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)


def stock_model(family: str, formula_of: Callable[[int], Formula], **arguments: Any) -> Any:
    """A stock model without native positions, in float64, whose layer ``n`` attends by ``formula_of(n)``."""
    stock = tiny.build(family, dtype=torch.float64, **arguments)
    for name, table in stock.named_parameters():
        if "position_embeddings" in name or "wpe" in name:
            nn.init.zeros_(table)
    for number, (_, attention) in enumerate(tiny.self_attentions(stock)):
        attention.__dict__["formula"] = formula_of(number)
    stock.set_attn_implementation(NAME)
    return stock


def weights_of(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -1e300).softmax(-1)


def causal_of(geometry: AttentionGeometry, offsets: Tensor) -> Tensor:
    return (offsets > 0)[None, None] & geometry.causal


def states(geometry: AttentionGeometry, length: int = 9, batch: int = 2) -> dict[str, Tensor]:
    """Random queries, keys and values."""
    generator = torch.Generator().manual_seed(length)
    shape = (batch, geometry.num_heads, length, geometry.head_dim)
    names = ("query", "key", "value")
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in names}


def layer_output(
    config: RelPosConfig, geometry: AttentionGeometry, tensors: dict[str, Tensor], mask: AttentionMask, scale: float
) -> Tensor:
    """What the package makes of the states, with the parameters of one layer given beside them by their names."""
    layer = RelPosLayer(config, geometry).double()
    parameters = {name: tensors[name] for name, _ in layer.named_parameters()}
    call = AttentionCall(tensors["query"], tensors["key"], tensors["value"], mask)
    made = functional_call(layer, parameters, (call,))
    output, _ = attend(made.query, made.key, call.value, made.terms, mask, scale=scale, engine=config.engine)
    return output if made.branch is None else output + made.branch
