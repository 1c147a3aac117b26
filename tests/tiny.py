"""Tiny models with large random weights, inputs for them, and what there is to compare of them."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pairwise
import torch
import transformers
from torch import Tensor, nn

from hf_relpos import (
    ALiBi,
    ClippedBias,
    DynamicConvolution,
    RelativeKeyQuery,
    RelPosConfig,
    Rotary,
    Shaw,
    T5Bias,
    patch_model,
)

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


@dataclass(frozen=True)
class Tiny:
    """All that the tests know of a kind of model; a new family needs a row of these in ``MODELS``.

    Attributes:
        family: the name it is registered under.
        config: its config class in Transformers.
        arguments: those of a config that make it tiny, with dropout off.
        head: the class of its head for tokens.
        auto: the Auto class that finds that head.
        attention: how the names of its self-attention classes end.
        native: how the paths of its native tables end.
        limit: the argument that says how many positions there are; None where there is no limit.
        first: the number of the first position; None where positions cannot be given.
        depth: the arguments that say how many layers there are.
    """

    family: str
    config: str
    arguments: dict[str, Any]
    head: str
    auto: str
    attention: str
    native: str
    limit: str | None = None
    first: int | None = 0
    depth: tuple[str, ...] = ("num_hidden_layers",)


_BERT = {"native": "position_embeddings", "limit": "max_position_embeddings"}
_T5 = {"auto": "AutoModelForSeq2SeqLM", "native": "relative_attention_bias", "first": None, "depth": ("num_layers",)}
MODELS = {
    "bert": Tiny(
        "bert", "BertConfig", BERT_LIKE, "BertForMaskedLM", "AutoModelForMaskedLM", "BertSelfAttention", **_BERT
    ),
    "bert-decoder": Tiny(
        "bert", "BertConfig", {**BERT_LIKE, "is_decoder": True, "eos_token_id": None},
        "BertLMHeadModel", "AutoModelForCausalLM", "BertSelfAttention", **_BERT,
    ),
    "roberta": Tiny(
        "roberta", "RobertaConfig", ROBERTA_LIKE,
        "RobertaForMaskedLM", "AutoModelForMaskedLM", "RobertaSelfAttention", first=1, **_BERT,
    ),
    "distilbert": Tiny(
        "distilbert", "DistilBertConfig", DISTILBERT_LIKE,
        "DistilBertForMaskedLM", "AutoModelForMaskedLM", "DistilBertSelfAttention", depth=("n_layers",), **_BERT,
    ),
    "gpt2": Tiny(
        "gpt2", "GPT2Config", GPT2_LIKE,
        "GPT2LMHeadModel", "AutoModelForCausalLM", "GPT2Attention", "wpe", "n_positions",
    ),
    "bart": Tiny(
        "bart", "BartConfig", BART_LIKE,
        "BartForConditionalGeneration", "AutoModelForSeq2SeqLM", "BartAttention", "embed_positions",
        "max_position_embeddings", first=None, depth=("encoder_layers", "decoder_layers"),
    ),
    "t5": Tiny("t5", "T5Config", T5_LIKE, "T5ForConditionalGeneration", attention="T5Attention", **_T5),
    "mt5": Tiny("mt5", "MT5Config", T5_LIKE, "MT5ForConditionalGeneration", attention="MT5Attention", **_T5),
    "umt5": Tiny("umt5", "UMT5Config", T5_LIKE, "UMT5ForConditionalGeneration", attention="UMT5Attention", **_T5),
}  # fmt: skip
FAMILIES = tuple(MODELS)
AUTO_HEAD = {name: model.auto for name, model in MODELS.items()}
ENCODER_DECODERS = tuple(name for name, auto in AUTO_HEAD.items() if auto == "AutoModelForSeq2SeqLM")
DECODERS = tuple(name for name, auto in AUTO_HEAD.items() if auto != "AutoModelForMaskedLM")
T5_LIKES = tuple(name for name, model in MODELS.items() if model.native == "relative_attention_bias")
ABSOLUTE = tuple(name for name, model in MODELS.items() if model.limit is not None)
DEPTH = {name: model.depth for name, model in MODELS.items()}
# One of each kind, for what does not depend on a relative's names and heads.
KINDS = ("bert", "gpt2", "t5")

SCHEMES: dict[str, Any] = {
    "shaw": Shaw(max_distance=3),
    "shaw-rank": Shaw(max_distance=3, rank=2),
    "shaw-per-head": Shaw(max_distance=2, per_head=True),
    "shaw-key": Shaw(max_distance=4, value=False),
    "shaw-value": Shaw(max_distance=3, key=False),
    "t5": T5Bias(num_buckets=8, max_distance=6),
    "clipped": ClippedBias(max_distance=5),
    "alibi": ALiBi(),
    "alibi-learned": ALiBi(learned=True),
    "key-query": RelativeKeyQuery(max_distance=3),
    "rotary": Rotary(base=100.0),
    "convolution": DynamicConvolution(kernel_size=3),
    "sum": (Shaw(max_distance=2, per_head=True, rank=3), T5Bias(num_buckets=8, max_distance=6), ClippedBias(3)),
    "sum-of-kinds": (ALiBi(learned=True), Rotary(fraction=0.5), DynamicConvolution(kernel_size=5)),
}
NATIVE = ("keep", "gate", "drop")
GATES = ("none", "head", "token")


def pairs(*families: str, **more: Any) -> Any:
    """Families (all by default), schemes, natives and gates, so that every two of them meet."""
    return pairwise.pairs(family=families or FAMILIES, scheme=SCHEMES, native=NATIVE, gate=GATES, **more)


def few(*families: str, **more: Any) -> Any:
    """The same but for families and schemes, which know nothing of each other: half as many rows."""
    return pairs(*families, apart=("family", "scheme"), **more)


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
    made = MODELS[family]
    return getattr(transformers, made.config)(**{**made.arguments, **arguments})


def build(family: str, cls: str | None = None, dtype: torch.dtype = torch.float32, **arguments: Any) -> Any:
    """A stock model in eval mode. Each call gives an independent one; equal arguments give equal weights."""
    made = MODELS[family]
    arguments = {**made.arguments, **arguments}
    return copy.deepcopy(_prototype(cls or made.head, made.config, tuple(arguments.items()), dtype))


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


def in_parts(model, family, sizes, cache=None):
    """Logits of a forward pass that gets its tokens in parts and keeps a cache."""
    batch = inputs(family, length=sum(sizes), padding=False)
    name, more = "input_ids", {}
    if family in ENCODER_DECODERS:
        name, mask = "decoder_input_ids", inputs(family)["attention_mask"]
        batch = {"decoder_input_ids": tokens(3, sum(sizes)), "attention_mask": mask}
        with torch.no_grad():
            more["encoder_outputs"] = model.get_encoder()(tokens(3, mask.shape[1], seed=4), attention_mask=mask)
        more["attention_mask"] = mask
    ids, made, start = batch[name], [], 0
    full = logits(model, {name: ids, **more}, use_cache=False)
    for size in sizes:
        part = {name: ids[:, start : start + size], **more}
        with torch.no_grad():
            out = model(**part, use_cache=True, **caching(model, cache))
        cache = cache_of(out)
        made.append(out.logits)
        start += size
    return torch.cat(made, 1), full


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


def self_attentions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Path and module of each self-attention, told apart from cross-attention by the names Transformers gives them."""
    names = tuple(made.attention for made in MODELS.values())
    for path, module in model.named_modules():
        if type(module).__name__.endswith(names) and not path.endswith(
            ("EncDecAttention", "crossattention", "encoder_attn")
        ):
            yield path, module


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


NOTHING_WRONG = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def load(cls, folder, **arguments):
    """Load and insist that no key was missing, unexpected or of another shape."""
    model, info = cls.from_pretrained(folder, output_loading_info=True, **arguments)
    assert {name: info.get(name) for name in NOTHING_WRONG if info.get(name)} == {}
    return model


def assert_equal_models(model, other, batch):
    assert type(other) is type(model)
    assert list(other.state_dict()) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert other.state_dict()[name].dtype == tensor.dtype, name
        assert torch.equal(other.state_dict()[name], tensor), name
    assert torch.equal(logits(other, batch), logits(model, batch))
