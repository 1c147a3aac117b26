"""The function that a patched model computes, written down once more, for the tests: no code shared with the package.

A stock model gets an attention function that looks up every pair of positions, and for each scheme a class with the
formula of its paper. A new scheme needs a class in ``SCHEMES`` here, and a row in ``tiny.SCHEMES``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tiny
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import RelPosConfig

NAME = "slow_reference"


@dataclass
class Call:
    """One call of attention.

    Attributes:
        query: ``[batch, heads, queries, dim]``; ``key`` and ``value`` likewise.
        offsets: ``[queries, keys]``, key position minus query position.
        allowed: bool, broadcasts to ``[batch, heads, queries, keys]``: who may see whom.
        causal: whether it is attention that only looks back.
        scale: the factor of ``query . key``.
        layer: which layer of its stack, counted from 0.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    offsets: Tensor
    allowed: Tensor
    causal: bool
    scale: float
    layer: int


class SlowScheme:
    """What a scheme does in one layer; a subclass overrides what it has something for.

    Args:
        config: the scheme's config.
        parameters: those of the scheme, by their names in it; of a factorised table its product.
    """

    def __init__(self, config: Any, parameters: dict[str, Tensor]) -> None:
        self.config = config
        self.parameters = parameters

    def rotated(self, call: Call) -> tuple[Tensor, Tensor]:
        """The queries and keys to attend with."""
        return call.query, call.key

    def scores(self, call: Call) -> Tensor | float:
        """Added to the scores, times the gate."""
        return 0.0

    def output(self, call: Call, weights: Tensor) -> Tensor | float:
        """Added to the output, times the gate."""
        return 0.0

    def beside(self, call: Call) -> Tensor | float:
        """Added to the output."""
        return 0.0

    def at(self, table: str, call: Call) -> Tensor:
        """The entry of a clipped table at every pair: ``[heads or 1, queries, keys, ...]``."""
        k = self.config.max_distance
        return self.parameters[table][:, call.offsets.clamp(-k, k) + k]


class SlowShaw(SlowScheme):
    """Equations 3 and 4 of Shaw et al. 2018."""

    def scores(self, call: Call) -> Tensor | float:
        if not self.config.key:
            return 0.0
        return call.scale * (call.query.unsqueeze(3) * self.at("key_table", call)).sum(-1)

    def output(self, call: Call, weights: Tensor) -> Tensor | float:
        if not self.config.value:
            return 0.0
        return (weights.unsqueeze(-1) * self.at("value_table", call)).sum(3)


class SlowT5Bias(SlowScheme):
    """The bucket of every pair, by Transformers' own function."""

    def scores(self, call: Call) -> Tensor:
        config = self.config
        buckets = T5Attention._relative_position_bucket(
            call.offsets, not call.causal, config.num_buckets, config.max_distance
        )
        return self.parameters["bucket_table"][:, buckets]


class SlowClippedBias(SlowScheme):
    """One number per head and clipped offset."""

    def scores(self, call: Call) -> Tensor:
        return self.at("bias_table", call)


class SlowALiBi(SlowScheme):
    """The distance times a slope per head, by the recursion of the authors' code."""

    def scores(self, call: Call) -> Tensor:
        slopes = torch.tensor(self.slopes(call.query.shape[1]), dtype=call.query.dtype)
        return -self.parameters.get("slopes", slopes)[:, None, None] * call.offsets.abs()

    def slopes(self, heads: int) -> list[float]:
        if math.log2(heads).is_integer():
            return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
        below = 2 ** math.floor(math.log2(heads))
        return self.slopes(below) + self.slopes(2 * below)[0::2][: heads - below]


class SlowRelativeKeyQuery(SlowScheme):
    """Method 4 of Huang et al. 2020: one vector per offset meets the query and the key."""

    def scores(self, call: Call) -> Tensor:
        vectors = self.at("vector_table", call)
        return call.scale * ((call.query.unsqueeze(3) + call.key.unsqueeze(2)) * vectors).sum(-1)


class SlowRotary(SlowScheme):
    """Each pair of numbers as a complex one, times ``exp(i * position * frequency)``."""

    def rotated(self, call: Call) -> tuple[Tensor, Tensor]:
        positions = torch.arange(call.key.shape[2])
        return self.turned(call.query, positions[-call.query.shape[2] :]), self.turned(call.key, positions)

    def turned(self, states: Tensor, positions: Tensor) -> Tensor:
        half = int(self.config.fraction * states.shape[-1]) // 2
        angles = positions[:, None] * torch.tensor(
            [self.config.base ** (-pair / half) for pair in range(half)], dtype=torch.float64
        )
        turns = torch.polar(torch.ones(angles.shape, dtype=torch.float64), angles)
        turned = torch.complex(states[..., :half].double(), states[..., half : 2 * half].double()) * turns
        return torch.cat([turned.real.to(states), turned.imag.to(states), states[..., 2 * half :]], dim=-1)


class SlowDynamicConvolution(SlowScheme):
    """Section 4 of Wu et al. 2019, one place of the kernel at a time."""

    def beside(self, call: Call) -> Tensor:
        kernels = torch.einsum("bhid,hnd->bhin", call.query, self.parameters["kernel"]).softmax(-1)
        size = kernels.shape[-1]
        first = 1 - size if call.causal else -(size // 2)
        at = [(call.offsets == first + place) & call.allowed for place in range(size)]
        summed = sum(kernels[..., place, None] * (at[place].to(call.value) @ call.value) for place in range(size))
        return self.parameters["gate"][:, None, None] * summed


# The name of each registered scheme, with its slow form.
SCHEMES: dict[str, type[SlowScheme]] = {
    "shaw": SlowShaw,
    "t5": SlowT5Bias,
    "clipped": SlowClippedBias,
    "alibi": SlowALiBi,
    "relative_key_query": SlowRelativeKeyQuery,
    "rotary": SlowRotary,
    "dynamic_convolution": SlowDynamicConvolution,
}


@dataclass
class Recipe:
    """What the slow attention knows of the layer it is called in."""

    schemes: list[SlowScheme]
    gate: tuple[Tensor, Tensor | None] | None
    window: int | None
    layer: int


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention over all pairs of positions; with relative positions where the module has a recipe."""
    recipe = module.__dict__.get("slow_relpos") or Recipe([], None, None, 0)
    queries, keys = query.shape[2], key.shape[2]
    offsets = torch.arange(keys)[None] - (torch.arange(queries) + keys - queries)[:, None]
    if attention_mask is None:
        attention_mask = query.new_zeros(1, 1, queries, keys)
    if recipe.window is not None:
        attention_mask = attention_mask.masked_fill(offsets.abs() > recipe.window, torch.finfo(query.dtype).min)
    # Not `is_causal` where there is the other: it is wrong in UMT5 of Transformers 5.15.
    causal = getattr(module, "is_decoder", None)
    call = Call(
        query, key, value, offsets, attention_mask > torch.finfo(query.dtype).min,
        causal=module.is_causal if causal is None else causal,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling, layer=recipe.layer,
    )  # fmt: skip
    gate = query.new_ones(1)
    if recipe.gate is not None:
        weight, bias = recipe.gate
        gate = weight[None, :, None, None]
        if bias is not None:
            gate = 2 * torch.sigmoid((query * weight[None, :, None]).sum(-1, keepdim=True) + bias[None, :, None, None])
    rotated, beside = (query, key), 0.0
    for scheme in recipe.schemes:
        once = scheme.rotated(call)
        rotated = rotated if once[0] is query else once
    scores = call.scale * torch.einsum("bhid,bhjd->bhij", *rotated)
    for scheme in recipe.schemes:
        scores = scores + gate * scheme.scores(call)
        beside = beside + scheme.beside(call)
    if position_bias is not None:
        scores = scores + position_bias
    weights = (scores + attention_mask).softmax(-1)
    output = torch.einsum("bhij,bhjd->bhid", weights, value) + beside
    for scheme in recipe.schemes:
        output = output + gate * scheme.output(call, weights)
    return output.transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, eager_mask)


def reference_of(model: nn.Module, stock: Any, config: RelPosConfig) -> Any:
    """A stock model that computes what the patched ``model`` must compute.

    What the patch added is read off ``model``'s parameters, which keep getting gradients; native tables that are
    gated or dropped are scaled in ``stock`` once, in place.

    Args:
        model: patched; only its named parameters are read.
        stock: a stock model with the weights that ``model`` had before; changed and returned.
        config: the choices of the patch.
    """
    added = tiny.added(model)
    modules = dict(stock.named_modules())
    depth: dict[str, int] = {}
    for path, module in tiny.self_attentions(stock):
        # The model next above it owns the stack.
        stack = next(above for above in _above(path) if isinstance(modules[above], transformers.PreTrainedModel))
        layer = depth[stack] = depth.get(stack, -1) + 1
        if config.layers is not None and layer not in config.layers:
            continue
        prefix = ".".join(filter(None, (stack if config.share_layers else path, "relpos.")))
        own = _below(prefix, added)
        schemes = [
            SCHEMES[scheme.name](scheme, _tables(_below(f"schemes.{index}.", own)))
            for index, scheme in enumerate(config.scheme_configs)
        ]
        gate = (own["gate.weight"], own.get("gate.bias")) if "gate.weight" in own else None
        module.__dict__["slow_relpos"] = Recipe(schemes, gate, config.window, layer)
    with torch.no_grad():
        for path, module in native_tables(stock):
            if config.native != "keep":
                module.weight.mul_(added[f"{path}.relpos_gate.weight"] if config.native == "gate" else 0.0)
    stock.set_attn_implementation(NAME)
    for module in stock.modules():
        if isinstance(module, transformers.PreTrainedModel):  # 5.15 leaves out the stacks' own configs
            module.config._attn_implementation = NAME
    return stock


def native_tables(stock: nn.Module) -> list[tuple[str, Any]]:
    """Path and module of each table of positions that a stock model was pretrained with."""
    names = tuple(made.native for made in tiny.MODELS.values())
    return [(path, module) for path, module in stock.named_modules() if path.endswith(names)]


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1)]


def _below(prefix: str, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def _tables(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tables by name; two factors as their product."""
    tables = {name.removesuffix(".weight"): value for name, value in parameters.items()}
    for name in [name for name in tables if name.endswith(".left")]:
        left, right = tables.pop(name), tables.pop(name.removesuffix("left") + "right")
        tables[name.removesuffix(".left")] = torch.einsum("tkr,trd->tkd", left, right)
    return tables
