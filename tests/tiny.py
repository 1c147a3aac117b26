"""Tiny models with large random weights, inputs for them, and a slow reference that shares no code with the package."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pairwise
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, patch_model

transformers.logging.disable_progress_bar()

VOCAB, HIDDEN, LAYERS, HEADS, POSITIONS = 50, 16, 2, 2, 16
HEAD_DIM = HIDDEN // HEADS

BERT_LIKE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
GPT2_LIKE = {
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": POSITIONS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
T5_LIKE = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "d_kv": HEAD_DIM,
    "d_ff": 32,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}

ROBERTA_LIKE = {**BERT_LIKE, "max_position_embeddings": POSITIONS + 1}  # the row of padding is none of them
DISTILBERT_LIKE = {
    "vocab_size": VOCAB,
    "dim": HIDDEN,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "hidden_dim": 32,
    "max_position_embeddings": POSITIONS,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
    "pad_token_id": 0,
}
BART_LIKE = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": POSITIONS,
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": None,
    "forced_eos_token_id": None,
}

# name: (config class, config arguments, class of the head)
_FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertConfig", BERT_LIKE, "BertForMaskedLM"),
    "bert-decoder": ("BertConfig", {**BERT_LIKE, "is_decoder": True, "eos_token_id": None}, "BertLMHeadModel"),
    "roberta": ("RobertaConfig", ROBERTA_LIKE, "RobertaForMaskedLM"),
    "distilbert": ("DistilBertConfig", DISTILBERT_LIKE, "DistilBertForMaskedLM"),
    "gpt2": ("GPT2Config", GPT2_LIKE, "GPT2LMHeadModel"),
    "bart": ("BartConfig", BART_LIKE, "BartForConditionalGeneration"),
    "t5": ("T5Config", T5_LIKE, "T5ForConditionalGeneration"),
    "mt5": ("MT5Config", T5_LIKE, "MT5ForConditionalGeneration"),
    "umt5": ("UMT5Config", T5_LIKE, "UMT5ForConditionalGeneration"),
}
FAMILIES = tuple(_FAMILIES)
T5_LIKES = ("t5", "mt5", "umt5")
ENCODER_DECODERS = ("bart", *T5_LIKES)
DECODERS = ("bert-decoder", "gpt2", *ENCODER_DECODERS)
ABSOLUTE = ("bert", "bert-decoder", "roberta", "distilbert", "gpt2", "bart")
# The config arguments with the number of layers.
DEPTH = {
    **dict.fromkeys(FAMILIES, ("num_hidden_layers",)),
    "distilbert": ("n_layers",),
    "bart": ("encoder_layers", "decoder_layers"),
    **dict.fromkeys(T5_LIKES, ("num_layers",)),
}
# One of each kind, for what does not depend on a relative's names and heads.
KINDS = ("bert", "gpt2", "t5")
# The head of a family through the Auto classes.
AUTO_HEAD = {
    "bert": "AutoModelForMaskedLM",
    "bert-decoder": "AutoModelForCausalLM",
    "roberta": "AutoModelForMaskedLM",
    "distilbert": "AutoModelForMaskedLM",
    "gpt2": "AutoModelForCausalLM",
    **dict.fromkeys(ENCODER_DECODERS, "AutoModelForSeq2SeqLM"),
}

SCHEMES: dict[str, Any] = {
    "shaw": Shaw(max_distance=3),
    "shaw-rank": Shaw(max_distance=3, rank=2),
    "shaw-per-head": Shaw(max_distance=2, per_head=True),
    "shaw-key": Shaw(max_distance=4, value=False),
    "shaw-value": Shaw(max_distance=3, key=False),
    "t5": T5Bias(num_buckets=8, max_distance=6),
    "clipped": ClippedBias(max_distance=5),
    "sum": (Shaw(max_distance=2, per_head=True, rank=3), T5Bias(num_buckets=8, max_distance=6), ClippedBias(3)),
}
NATIVE = ("keep", "gate", "drop")
GATES = ("none", "head", "token")


def pairs(*families: str, **more: Any) -> Any:
    """Families (all by default), schemes, natives and gates, so that every two of them meet."""
    return pairwise.pairs(family=families or FAMILIES, scheme=SCHEMES, native=NATIVE, gate=GATES, **more)


def few(*families: str) -> Any:
    """The same but for families and schemes, which know nothing of each other: half as many rows."""
    return pairs(*families, apart=("family", "scheme"))


def choices(scheme: str, native: str = "gate", gate: str = "head", **more: Any) -> RelPosConfig:
    return RelPosConfig(schemes=SCHEMES[scheme], native=native, gate=gate, **more)


# Models


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter values so large that whatever is done wrong shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if "relative_attention_bias" in name:
                parameter.copy_(noise * 2)
            elif "norm" in name.lower() or ".ln_" in name:
                parameter.copy_(parameter + 0.1 * noise)
            else:
                parameter.copy_(noise * 0.3)
    return model


@functools.cache
def _prototype(cls: str, config: str, arguments: tuple[tuple[str, Any], ...], dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        model = getattr(transformers, cls)(getattr(transformers, config)(**dict(arguments)))
    return randomise(mended(model).to(dtype).eval())


def mended(stock: nn.Module) -> Any:
    """A stock model whose decoder does not attend to later tokens: that of UMT5 in Transformers 5.15 does."""
    for _, attention in self_attentions(stock):
        attention.is_causal = getattr(attention, "is_decoder", attention.is_causal)
    return stock


def config_of(family: str, **arguments: Any) -> Any:
    name, defaults, _ = _FAMILIES[family]
    return getattr(transformers, name)(**{**defaults, **arguments})


def build(family: str, cls: str | None = None, dtype: torch.dtype = torch.float32, **arguments: Any) -> Any:
    """A stock model in eval mode. Each call gives an independent one; equal arguments give equal weights."""
    config, defaults, head = _FAMILIES[family]
    arguments = {**defaults, **arguments}
    return copy.deepcopy(_prototype(cls or head, config, tuple(arguments.items()), dtype))


def fill(model: nn.Module, seed: int = 1, std: float = 0.8) -> Any:
    """Give every added parameter large random values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relpos" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator).to(parameter) * std)
    return model


def patched(
    family: str,
    scheme: str = "shaw",
    native: str = "gate",
    gate: str = "head",
    dtype: torch.dtype = torch.float32,
    cls: str | None = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A patched model whose added parameters have large random values."""
    stock = build(family, cls=cls, dtype=dtype, **(config or {}))
    return fill(patch_model(stock, choices(scheme, native, gate, **more)))


def added(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if "relpos" in name}


# Inputs


def tokens(*shape: int, seed: int = 2) -> Tensor:
    """Random ids; none is a special one."""
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def inputs(family: str, length: int = 11, padding: bool = True) -> dict[str, Tensor]:
    """A batch of three: all real, padded on the right, padded on the left. Decoders of T5 get their own length."""
    mask = torch.ones(3, length, dtype=torch.long)
    if padding:
        mask[1, -3:] = 0
        mask[2, :2] = 0
    batch = {"input_ids": tokens(3, length) * mask, "attention_mask": mask}
    if family in ENCODER_DECODERS:
        batch["decoder_input_ids"] = tokens(3, length - 2, seed=3)
    return batch


def logits(model: nn.Module, batch: dict[str, Tensor], **more: Any) -> Tensor:
    with torch.no_grad():
        return model(**batch, **more).logits


def caching(model: nn.Module, cache: Any) -> dict[str, Any]:
    """A cache as keyword argument of a forward pass; Transformers 5.24 gave it another name."""
    return {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}


def cache_of(out: Any) -> Any:
    """The cache that a forward pass returned."""
    return out["cache"] if "cache" in out else out["past_key_values"]


def real_logits(model: nn.Module, batch: dict[str, Tensor], **more: Any) -> Tensor:
    """The logits of the tokens that are no padding, one row each."""
    out = logits(model, batch, **more)
    if "decoder_input_ids" in batch:
        return out.flatten(0, 1)
    mask = batch.get("attention_mask")
    return out.flatten(0, 1) if mask is None else out[mask.bool()]


def assert_close(actual: Tensor, expected: Tensor, atol: float | None = None) -> None:
    if atol is None:
        atol = 1e-8 if actual.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(actual, expected, atol=atol, rtol=atol)


def differ(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


# The slow reference: a stock model with an attention function that looks up every pair of positions.

REFERENCE = "slow_reference"


def reference_attention(
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
    queries, keys = query.shape[2], key.shape[2]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    recipe = module.__dict__.get("slow_relpos", {"config": None, "schemes": [], "gate": None})
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * scaling
    gate = query.new_ones(1, 1, 1)
    if recipe["gate"] is not None:
        weight, bias = recipe["gate"]
        gate = weight[None, :, None]
        if bias is not None:
            gate = 2 * torch.sigmoid(torch.einsum("bhid,hd->bhi", query, weight) + bias[None, :, None])
    at = torch.arange(queries) + keys - queries
    offsets = torch.arange(keys)[None, :] - at[:, None]
    for scheme, table in recipe["schemes"]:
        if isinstance(scheme, T5Bias):
            # Not `is_causal` where there is the other: it is wrong in UMT5 of Transformers 5.15.
            causal = getattr(module, "is_decoder", None)
            causal = module.is_causal if causal is None else causal
            buckets = T5Attention._relative_position_bucket(
                offsets, not causal, scheme.num_buckets, scheme.max_distance
            )
            scores = scores + gate[..., None] * table["bucket_table"][:, buckets]
            continue
        index = offsets.clamp(-scheme.max_distance, scheme.max_distance) + scheme.max_distance
        if "bias_table" in table:
            scores = scores + gate[..., None] * table["bias_table"][:, index]
        if "key_table" in table:
            vectors = table["key_table"][:, index].expand(query.shape[1], -1, -1, -1)
            scores = scores + scaling * gate[..., None] * torch.einsum("bhid,hijd->bhij", query, vectors)
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    if recipe["config"] is not None and recipe["config"].window is not None:
        scores = scores.masked_fill(offsets.abs() > recipe["config"].window, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    output = torch.einsum("bhij,bhjd->bhid", weights, value)
    for scheme, table in recipe["schemes"]:
        if "value_table" in table:
            index = offsets.clamp(-scheme.max_distance, scheme.max_distance) + scheme.max_distance
            vectors = table["value_table"][:, index].expand(query.shape[1], -1, -1, -1)
            output = output + gate[..., None] * torch.einsum("bhij,hijd->bhid", weights, vectors)
    return output.transpose(1, 2).contiguous(), weights


AttentionInterface.register(REFERENCE, reference_attention)
AttentionMaskInterface.register(REFERENCE, eager_mask)


def self_attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Path and module of each self-attention, told apart from cross-attention by the names Transformers gives them."""
    names = (
        *("BertSelfAttention", "RobertaSelfAttention", "DistilBertSelfAttention"),
        *("GPT2Attention", "BartAttention", "T5Attention", "MT5Attention", "UMT5Attention"),
    )
    for path, module in model.named_modules():
        if type(module).__name__.removeprefix("RelPos") in names and not path.endswith(
            ("EncDecAttention", "crossattention", "encoder_attn")
        ):
            yield path, module


def reference_of(model: nn.Module, stock: Any, config: RelPosConfig) -> Any:
    """A stock model that computes what the patched ``model`` must compute.

    Args:
        model: patched; only its state dict is read.
        stock: a stock model with the weights that ``model`` had before; changed and returned.
        config: the choices of the patch.
    """
    state = model.state_dict()
    depth: dict[str, int] = {}
    for path, module in self_attentions(stock):
        stack = re.split(r"\.(?:block|layer|layers|h)\.", path)[0]
        layer = depth[stack] = depth.get(stack, -1) + 1
        if config.layers is not None and layer not in config.layers:
            continue
        prefix = f"{path}.relpos."
        if config.share_layers:
            # The model next above a stack's layers has them; the encoder of BERT and its kin is not a model itself.
            owner = re.sub("(encoder|transformer)$", "", stack) if "bert" in stack else stack + "."
            prefix = f"{owner}relpos."
        schemes = []
        for index, scheme in enumerate(config.schemes):
            tables = {}
            for name in ("key_table", "value_table", "bias_table", "bucket_table"):
                at = f"{prefix}schemes.{index}.{name}."
                if at + "weight" in state:
                    tables[name] = state[at + "weight"]
                elif at + "left" in state:
                    tables[name] = torch.einsum("tkr,trd->tkd", state[at + "left"], state[at + "right"])
            assert tables, f"no table of {scheme} at {prefix}"
            schemes.append((scheme, tables))
        gate = None
        if config.gate != "none":
            gate = (state[prefix + "gate.weight"], state.get(prefix + "gate.bias"))
        module.__dict__["slow_relpos"] = {"config": config, "schemes": schemes, "gate": gate}
    with torch.no_grad():
        for path, module in stock.named_modules():
            if path.endswith(("position_embeddings", "wpe", "embed_positions", "relative_attention_bias")):
                if config.native == "drop":
                    module.weight.zero_()
                elif config.native == "gate":
                    module.weight.mul_(state[f"{path}.relpos_gate.weight"])
    stock.set_attn_implementation(REFERENCE)
    for module in stock.modules():
        if isinstance(module, transformers.PreTrainedModel):  # 5.15 leaves out the stacks' own configs
            module.config._attn_implementation = REFERENCE
    return stock


# What a model is, for comparisons before and after.


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a patch could change: classes, plain attributes, parameters, configs, modes."""
    plain = (bool, int, float, str, tuple, type(None))
    modules = {
        path: (type(module), {name: value for name, value in vars(module).items() if isinstance(value, plain)})
        for path, module in model.named_modules()
    }
    hooks = {
        path: [name for name, value in vars(module).items() if name.endswith("hooks") and value]
        for path, module in model.named_modules()
    }
    configs = {
        path: (type(module.config), copy.deepcopy(vars(module.config)))
        for path, module in model.named_modules()
        if isinstance(module, transformers.PreTrainedModel)
    }
    return {
        "modules": modules,
        "hooks": hooks,
        "configs": configs,
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "trainable": [(name, parameter.requires_grad) for name, parameter in model.named_parameters()],
        "implementation": {
            path: module.config._attn_implementation
            for path, module in model.named_modules()
            if isinstance(module, transformers.PreTrainedModel)
        },
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Two snapshots are equal, tensors bit for bit."""
    for part in ("modules", "hooks", "configs", "trainable", "implementation"):
        assert after[part] == before[part], part
    assert list(after["state"]) == list(before["state"])
    for name, tensor in before["state"].items():
        assert after["state"][name].dtype == tensor.dtype, name
        assert torch.equal(after["state"][name], tensor), name


def labelled(family: str, length: int = 9, padding: bool = False) -> dict[str, Tensor]:
    """A batch with labels."""
    batch = inputs(family, length, padding)
    wanted = batch.pop("decoder_input_ids", batch["input_ids"])
    return {**batch, "labels": wanted.clone()}


def train(model: nn.Module, family: str, steps: int = 2, rate: float = 0.05) -> list[float]:
    """A few steps of SGD; returns the losses."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate)
    losses = []
    model.train()
    for _ in range(steps):
        loss = model(**labelled(family)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses
