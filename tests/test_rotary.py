"""Rotary: the rotation of Llama, whatever is cached, padded, or known on the device only."""

from __future__ import annotations

from typing import Any

import by_formula
import pytest
import reference
import tiny
import torch
from torch import Tensor
from transformers import LlamaConfig, cache_utils
from transformers.models.llama.modeling_llama import LlamaModel, LlamaRotaryEmbedding, apply_rotary_pos_emb

from hf_relpos import ALiBi, RelPosConfig, RelPosConfigError, Rotary, T5Bias, patch_model
from hf_relpos.families import FAMILIES, Family, RotaryPositions
from hf_relpos.masks import AttentionMask
from hf_relpos.nn import RelativeMultiheadAttention, RelativePositionBias
from hf_relpos.schemes import AttentionCall, AttentionGeometry


def by_llama(states: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """States ``[batch, heads, length, dim]`` rotated by the code of Llama, in its float32."""
    config = LlamaConfig(
        hidden_size=states.shape[-1],
        num_attention_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    cos, sin = LlamaRotaryEmbedding(config)(states, positions[None])
    return apply_rotary_pos_emb(states, states, cos, sin)[0]


def by_complex_numbers(states: Tensor, positions: Tensor, base: float, size: int) -> Tensor:
    """The same in float64, each pair as a complex number times ``exp(i * position * frequency)``."""
    pairs = torch.complex(states[..., : size // 2], states[..., size // 2 : size])
    frequencies = torch.tensor([base ** (-2 * pair / size) for pair in range(size // 2)], dtype=torch.float64)
    turned = pairs * torch.polar(torch.ones(()).double(), positions[:, None].double() * frequencies)
    return torch.cat([turned.real, turned.imag, states[..., size:]], dim=-1)


def formula(base: float = 10000.0, size: int = tiny.HEAD_DIM, bias: Tensor | None = None) -> by_formula.Formula:
    def attend(query, key, value, offsets, hidden, scale):
        keys = torch.arange(key.shape[2])
        rotated = [by_complex_numbers(states, keys[-states.shape[2] :], base, size) for states in (query, key)]
        scores = rotated[0] @ rotated[1].mT * scale
        if bias is not None:
            k = bias.shape[1] // 2
            scores = scores + bias[:, offsets.clamp(-k, k) + k]
        return by_formula.weights_of(scores, hidden) @ value

    return attend


@pytest.mark.core
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_queries_and_keys_are_rotated_as_by_llama(base: float, on_device: bool):
    scheme = Rotary(base=base).build(AttentionGeometry(num_heads=2, head_dim=8, causal=True))
    query, key = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 11, 8)
    mask = AttentionMask(4, 11, query_offset=torch.tensor(7) if on_device else 7, causal=True)
    rotated = scheme.rotate(AttentionCall(query, key, key, mask))
    torch.testing.assert_close(rotated[0], by_llama(query, torch.arange(7, 11), base))
    torch.testing.assert_close(rotated[1], by_llama(key, torch.arange(11), base))


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("base", "fraction"), [(10000.0, 1.0), (100.0, 0.5), (10000.0, 0.25)])
def test_the_layer_is_the_formula_with_its_gradients(causal: bool, base: float, fraction: float):
    geometry = AttentionGeometry(num_heads=3, head_dim=8, causal=causal)
    config = RelPosConfig(Rotary(base=base, fraction=fraction))
    tensors = by_formula.states(geometry)

    def expected(leaves: dict[str, Tensor]) -> Tensor:
        offsets = torch.arange(9) - torch.arange(9)[:, None]
        attend = formula(base, int(8 * fraction))
        hidden = by_formula.causal_of(geometry, offsets)
        return attend(leaves["query"], leaves["key"], leaves["value"], offsets, hidden, 0.5)

    mask = AttentionMask(9, 9, causal=causal)
    reference.assert_all_close(
        reference.output_and_gradients(
            lambda leaves: by_formula.layer_output(config, geometry, leaves, mask, 0.5), tensors
        ),
        reference.output_and_gradients(expected, tensors),
        1e-10,
    )


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_model_attends_by_rotated_queries_and_keys(family: str, with_bias: bool):
    schemes = [Rotary(), T5Bias(8, 6)] if with_bias else [Rotary()]
    stock = tiny.build(family, dtype=torch.float64)
    model = tiny.fill(patch_model(stock, RelPosConfig(schemes, native="drop", gate="none")))
    biases: list[Any] = [None, None]
    if with_bias:
        layers = [attention.relpos.schemes[1] for _, attention in tiny.self_attentions(model)]
        biases = [layer.tables(6, torch.empty(0)).bias.detach() for layer in layers]
    expected = by_formula.stock_model(family, lambda layer: formula(bias=biases[layer]))
    batch = tiny.inputs(family)
    tiny.assert_close(tiny.real_logits(model, batch), tiny.real_logits(expected, batch), 1e-10)


@pytest.mark.core
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_cached_decoding_is_the_full_forward_pass(static: bool, padding: bool):
    model = patch_model(tiny.build("gpt2", dtype=torch.float64), RelPosConfig("rotary", native="drop"))
    ids, mask = tiny.tokens(2, 30), torch.ones(2, 30, dtype=torch.long)
    if padding:
        mask[1, :4] = 0
    full = tiny.logits(model, {"input_ids": ids, "attention_mask": mask})
    cache = cache_utils.StaticCache(model.config, 40) if static else cache_utils.DynamicCache(config=model.config)
    parts, start = [], 0
    for size in (7, 1, 5, 1, 1, 15):
        stop = start + size
        with torch.no_grad():
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], use_cache=True, **tiny.caching(model, cache))
        parts.append(out.logits)
        start = stop
    tiny.assert_close(torch.cat(parts, 1)[mask.bool()], full[mask.bool()], 1e-10)


@pytest.mark.core
def test_padding_on_the_left_changes_nothing_for_real_tokens():
    model = patch_model(tiny.build("bert", dtype=torch.float64), RelPosConfig("rotary", native="drop"))
    ids = tiny.tokens(1, 9)
    padded = {
        "input_ids": torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], 1),
        "attention_mask": torch.tensor([[0] * 5 + [1] * 9]),
    }
    tiny.assert_close(tiny.logits(model, padded)[:, 5:], tiny.logits(model, {"input_ids": ids}), 1e-10)


def test_half_precision_is_rotated_in_float32():
    scheme = Rotary().build(AttentionGeometry(num_heads=1, head_dim=8, causal=True))
    states = torch.randn(1, 1, 3000, 8)
    call = AttentionCall(*[states.bfloat16()] * 3, AttentionMask(3000, 3000))
    wanted = by_llama(states.bfloat16().float(), torch.arange(3000))
    for rotated in scheme.rotate(call):
        assert rotated.dtype == torch.bfloat16
        torch.testing.assert_close(rotated, wanted.bfloat16(), atol=0.02, rtol=0.01)


def test_it_has_no_parameters_and_nothing_to_gate():
    config = RelPosConfig("rotary", native="drop")
    assert config.gate == "none"
    assert not config.learns
    assert not config.starts_exact
    model = patch_model(tiny.build("bert"), config)
    assert not tiny.added(model)


@pytest.mark.core
def test_in_a_module_of_ones_own_it_is_torch_attention_with_rotated_projections():
    module = RelativeMultiheadAttention(16, 2, schemes="rotary", causal=True).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)

    def heads(states: Tensor) -> Tensor:
        return states.view(2, 7, 2, 8).transpose(1, 2)

    offsets = torch.arange(7) - torch.arange(7)[:, None]
    mixed = formula()(
        heads(module.q_proj(x)), heads(module.k_proj(x)), heads(module.v_proj(x)), offsets, offsets > 0, 8**-0.5
    )
    tiny.assert_close(module(x)[0], module.out_proj(mixed.transpose(1, 2).flatten(2)), 1e-10)
    with pytest.raises(RelPosConfigError, match="only a bias"):
        RelativePositionBias(2, scheme="rotary")


@pytest.mark.core
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"base": 1}, ("base", "above 1")),
        ({"base": "10000"}, ("base", "above 1")),
        ({"fraction": 0}, ("fraction", "at most 1")),
        ({"fraction": 1.5}, ("fraction", "at most 1")),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values: dict[str, Any], named: tuple[str, str]):
    with pytest.raises(RelPosConfigError) as refusal:
        Rotary(**values)
    assert all(part in str(refusal.value) for part in ("Rotary", *named))


@pytest.mark.parametrize(("head_dim", "fraction"), [(7, 1.0), (8, 0.3), (8, 0.125), (6, 0.5)])
def test_a_part_that_has_no_pairs_is_refused(head_dim: int, fraction: float):
    with pytest.raises(RelPosConfigError, match=r"fraction.*even number.*pairs"):
        Rotary(fraction=fraction).build(AttentionGeometry(num_heads=1, head_dim=head_dim, causal=False))


@pytest.mark.core
def test_what_cannot_be_combined_with_a_rotation_says_so():
    with pytest.raises(RelPosConfigError, match="at most one rotates"):
        RelPosConfig([Rotary(), Rotary(base=100)])
    for other in ("shaw", "relative_key_query"):
        with pytest.raises(RelPosConfigError, match=rf"'rotary' rotates.*{other!r} multiplies"):
            RelPosConfig(["rotary", other])
    assert RelPosConfig([Rotary(), ALiBi(), T5Bias()], native="drop").gate == "head"


@pytest.mark.core
@pytest.mark.parametrize("scheme", ["rotary", "shaw", "relative_key_query"])
def test_a_family_that_rotates_by_itself_takes_no_second_rotation_and_no_vectors(scheme: str, monkeypatch: Any):
    llama = Family(
        "llama", "LlamaConfig", "LlamaAttention", "config.num_attention_heads", "head_dim", "is_causal",
        natives=(RotaryPositions(),),
    )  # fmt: skip
    monkeypatch.setitem(FAMILIES, "llama", llama)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaModel(LlamaConfig(**sizes, intermediate_size=32))
    with pytest.raises(RelPosConfigError, match=rf"LlamaModel rotates.*{scheme!r} would (rotate|multiply)"):
        patch_model(model, RelPosConfig(scheme, native="keep"))
    assert type(model) is LlamaModel
