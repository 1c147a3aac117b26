"""The stand-alone modules: the conventions of PyTorch outside, the schemes and engines of the package inside."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import reference
import torch
from cases import CHOICES
from pairwise import pairs
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import ClippedBias, RelPosConfigError, Shaw, T5Bias
from hf_relpos.engines import ENGINES
from hf_relpos.engines.engine import takes_everything
from hf_relpos.masks import AttentionMask
from hf_relpos.nn import RelativeMultiheadAttention, RelativePositionBias, SinusoidalPositionalEncoding
from hf_relpos.schemes import AttentionCall

TAKE_ALL = [name for name, engine in ENGINES.items() if engine.refuses is takes_everything]

BATCH, LENGTH, SIZE, HEADS = 2, 7, 12, 3


def attention(*arguments: Any, **options: Any) -> RelativeMultiheadAttention:
    """A module in float64 whose every parameter is large and random."""
    module = RelativeMultiheadAttention(SIZE, HEADS, *arguments, **options).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def tokens(length: int = LENGTH, size: int = SIZE) -> Tensor:
    return torch.randn(BATCH, length, size, dtype=torch.float64)


def expected_output(
    module: RelativeMultiheadAttention, query: Tensor, key: Tensor, value: Tensor, **reference_options: Any
) -> tuple[Tensor, Tensor]:
    """The module's output and weights from the pairwise reference."""

    def heads(states: Tensor) -> Tensor:
        return states.view(BATCH, -1, HEADS, SIZE // HEADS).transpose(1, 2)

    q, k, v = heads(module.q_proj(query)), heads(module.k_proj(key)), heads(module.v_proj(value))
    terms = module.relpos(AttentionCall(q, k, v, AttentionMask(q.shape[2], k.shape[2]))).terms
    output, weights = reference.attention(q, k, v, terms, scale=(SIZE // HEADS) ** -0.5, **reference_options)
    return module.out_proj(output.transpose(1, 2).reshape(BATCH, -1, SIZE)), weights


# Attention


@pytest.mark.core
@pairs(
    schemes=(None, T5Bias(8, 10), (Shaw(2, rank=2), "clipped", T5Bias(8, 6))),
    gate=("none", "head", "token"),
    engine=CHOICES,
)
def test_self_attention_equals_the_reference(schemes: Any, gate: str, engine: str):
    module, x = attention(schemes=schemes, gate=gate, engine=engine), tokens()
    output, weights = module(x)
    assert weights is None
    torch.testing.assert_close(output, expected_output(module, x, x, x)[0], rtol=0, atol=1e-10)


def test_the_default_scheme_is_shaw_with_the_distance_given():
    module = RelativeMultiheadAttention(SIZE, HEADS, max_distance=5)
    assert module.relpos.config.schemes == (Shaw(max_distance=5, init="trunc_normal"),)
    assert RelativeMultiheadAttention(SIZE, HEADS).relpos.config.schemes[0].horizon == 8
    assert RelativeMultiheadAttention(SIZE, HEADS, schemes="t5").relpos.config.schemes == (T5Bias(),)


@pytest.mark.core
@pytest.mark.parametrize("keys", [3, 7, 11])
def test_queries_keys_and_values_may_differ_in_number_and_size(keys: int):
    module = attention(3, kdim=5, vdim=8)
    query, key, value = tokens(), tokens(keys, 5), tokens(keys, 8)
    output, weights = module(query, key, value, need_weights=True)
    wanted, wanted_weights = expected_output(module, query, key, value)
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, wanted_weights, rtol=0, atol=1e-10)


def test_a_key_alone_is_also_the_value():
    module, x, memory = attention(), tokens(), tokens(9)
    assert torch.equal(module(x, memory)[0], module(x, memory, memory)[0])


@pytest.mark.core
@pytest.mark.parametrize("bias", [True, False])
def test_zero_tables_give_torch_multihead_attention(bias: bool):
    """With its masks and their meaning: True hides, and float masks are added."""
    module = attention(schemes="shaw", bias=bias)
    for parameter in module.relpos.parameters():
        nn.init.zeros_(parameter)
    stock = nn.MultiheadAttention(SIZE, HEADS, bias=bias, batch_first=True).double().eval()
    projections = (module.q_proj, module.k_proj, module.v_proj)
    stock.in_proj_weight.data = torch.cat([projection.weight.data for projection in projections])
    stock.out_proj.weight.data = module.out_proj.weight.data
    if bias:
        stock.in_proj_bias.data = torch.cat([projection.bias.data for projection in projections])
        stock.out_proj.bias.data = module.out_proj.bias.data

    x = tokens()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 5:] = True
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    float_padding = torch.zeros(BATCH, LENGTH, dtype=torch.float64).masked_fill(padding, -math.inf)
    some = torch.randn(LENGTH, LENGTH, dtype=torch.float64)
    for options in (
        {},
        {"key_padding_mask": padding},
        {"key_padding_mask": float_padding},
        {"attn_mask": later},
        {"attn_mask": some},
        {"attn_mask": some.expand(BATCH * HEADS, -1, -1)},
        {"attn_mask": later, "key_padding_mask": padding},
        {"attn_mask": some, "key_padding_mask": float_padding},
        {"attn_mask": later, "is_causal": True},
    ):
        wanted, wanted_weights = stock(x, x, x, need_weights=True, average_attn_weights=False, **options)
        output, weights = module(x, x, x, need_weights=True, **options)
        torch.testing.assert_close(output, wanted, rtol=0, atol=1e-10)
        torch.testing.assert_close(weights, wanted_weights, rtol=0, atol=1e-10)
    mixed, _ = module(x, attn_mask=later, key_padding_mask=float_padding)
    torch.testing.assert_close(mixed, module(x, attn_mask=later, key_padding_mask=padding)[0], rtol=0, atol=1e-12)


def test_a_mask_per_sequence_and_head_is_taken_in_both_layouts():
    module, x = attention(), tokens()
    hidden = torch.rand(BATCH, HEADS, LENGTH, LENGTH) < 0.4
    output, _ = module(x, attn_mask=hidden)
    assert torch.equal(output, module(x, attn_mask=hidden.flatten(0, 1))[0])
    torch.testing.assert_close(output, expected_output(module, x, x, x, allowed=~hidden)[0], rtol=0, atol=1e-10)


@pytest.mark.core
@pytest.mark.parametrize("engine", CHOICES)
def test_padding_changes_nothing_for_real_tokens(engine: str):
    module, x = attention(engine=engine), tokens()
    padded = torch.cat([x, tokens(4)], dim=1)
    padding = (torch.arange(LENGTH + 4) >= LENGTH).expand(BATCH, -1)
    output, _ = module(padded, key_padding_mask=padding)
    torch.testing.assert_close(output[:, :LENGTH], module(x)[0], rtol=0, atol=1e-12)


@pytest.mark.core
@pytest.mark.parametrize("engine", CHOICES)
@pytest.mark.parametrize("where", ["module", "call"])
def test_causal_attention_does_not_look_ahead(where: str, engine: str):
    module = attention(causal=where == "module", schemes=["shaw", T5Bias(8, 10)], engine=engine)
    options = {"is_causal": True} if where == "call" else {}
    x = tokens()
    before, _ = module(x, **options)
    x[:, -1] += 1.0
    after, _ = module(x, **options)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.core
@pytest.mark.parametrize("engine", TAKE_ALL)
@pytest.mark.parametrize("parts", [[1] * LENGTH, [3, 4], [6, 1]], ids=str)
@pytest.mark.parametrize("on_device", [False, True])
def test_decoding_in_parts_equals_the_full_pass(parts: list[int], on_device: bool, engine: str):
    module, x = attention(2, causal=True, gate="token", engine=engine), tokens()
    whole, _ = module(x)
    start = 0
    for part in parts:
        stop = start + part
        offset = torch.tensor(start) if on_device else start
        output, _ = module(x[:, start:stop], x[:, :stop], query_offset=offset)
        torch.testing.assert_close(output, whole[:, start:stop], rtol=0, atol=1e-12)
        start = stop


def test_a_window_hides_far_keys():
    module, x = attention(window=2), tokens()
    near = torch.tensor([[abs(i - j) <= 2 for j in range(LENGTH)] for i in range(LENGTH)])
    torch.testing.assert_close(module(x)[0], expected_output(module, x, x, x, allowed=near)[0], rtol=0, atol=1e-10)


def test_a_sequence_without_tokens_gives_the_output_bias_and_finite_gradients():
    module, x = attention(), tokens().requires_grad_()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1] = True
    output, _ = module(x, key_padding_mask=padding)
    torch.testing.assert_close(output[1], module.out_proj.bias.expand(LENGTH, -1))
    output.sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad[1] == 0).all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("engine", TAKE_ALL)
def test_dropout_acts_in_training_alone(engine: str):
    module, x = attention(dropout=0.5, engine=engine), tokens()
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.equal(module(x)[0], module(x)[0])


@pytest.mark.core
@pytest.mark.parametrize("gate", ["none", "head", "token"])
def test_every_parameter_learns_and_positions_matter_from_the_start(gate: str):
    module, x = RelativeMultiheadAttention(SIZE, HEADS, gate=gate).double(), tokens()
    output, _ = module(x)
    output.square().sum().backward()
    assert all(parameter.grad.any() for name, parameter in module.named_parameters() if "k_proj.bias" not in name)
    order = torch.randperm(LENGTH)
    assert (module(x[:, order])[0] - output[:, order]).abs().max() > 1e-4


@pytest.mark.parametrize("training", [True, False])
def test_it_can_stand_in_torch_transformer_layers(training: bool):
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, dropout=0.0, batch_first=True)
    layer.self_attn = RelativeMultiheadAttention(SIZE, HEADS, max_distance=2)
    stack = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).double().train(training)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = tokens()
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 5:] = True
    with torch.set_grad_enabled(training):
        output = stack(x, src_key_padding_mask=padding)
        alone = stack(x[:1, :5])
        causal = stack(x, mask=nn.Transformer.generate_square_subsequent_mask(LENGTH).double(), is_causal=True)
        shorter = stack(x[:, :4], mask=nn.Transformer.generate_square_subsequent_mask(4).double())
        table = stack.layers[0].self_attn.relpos.schemes[0].key_table.weight
        table.data += torch.randn_like(table)  # a constant would only shift all scores
        assert (stack(x, src_key_padding_mask=padding) - output).abs().max() > 1e-3
    torch.testing.assert_close(output[:1, :5], alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(causal[:, :4], shorter, rtol=0, atol=1e-10)


def test_autocast_and_bfloat16_run():
    module = RelativeMultiheadAttention(SIZE, HEADS, schemes=["shaw", "t5"], gate="token")
    x = torch.randn(BATCH, LENGTH, SIZE)
    exact, _ = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = module(x)
    low.float().sum().backward()
    torch.testing.assert_close(low.float(), exact, rtol=0.05, atol=0.05)
    low, weights = module.to(torch.bfloat16)(x.to(torch.bfloat16), need_weights=True)
    assert low.dtype == weights.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact, rtol=0.05, atol=0.05)


def test_device_and_dtype_of_the_parameters_can_be_chosen():
    module = RelativeMultiheadAttention(SIZE, HEADS, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in module.parameters()} == {("meta", torch.bfloat16)}
    bias = RelativePositionBias(HEADS, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in bias.parameters()} == {("meta", torch.float16)}


def test_a_state_dict_reloads_bit_equal():
    module, x = attention(schemes=["shaw", "t5"], gate="head"), tokens()
    other = attention(schemes=["shaw", "t5"], gate="head")
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x)[0], other(x)[0])


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"embed_dim": 0}, ("embed_dim", "0", "at least 1")),
        ({"num_heads": 5}, ("num_heads", "5", "embed_dim=12")),
        ({"num_heads": 2.0}, ("num_heads", "2.0", "whole number")),
        ({"max_distance": 0}, ("max_distance", "0", "at least 1")),
        ({"schemes": "fourier"}, ("'fourier'", "'shaw'")),
        ({"schemes": []}, ("schemes", "at least one")),
        ({"gate": "layer"}, ("gate", "'layer'", "'head'")),
        ({"engine": "warp"}, ("engine", "'warp'", "'eager'")),
        ({"window": 0}, ("window", "0", "at least 1")),
        ({"dropout": 1.0}, ("dropout", "1.0", "below 1")),
        ({"dropout": -0.1}, ("dropout", "-0.1")),
        ({"causal": None}, ("causal", "None", "True or False")),
        ({"bias": 1}, ("bias", "1", "True or False")),
        ({"kdim": 0}, ("kdim", "0", "at least 1")),
        ({"vdim": -1}, ("vdim", "-1", "at least 1")),
    ],
    ids=lambda entry: repr(entry) if isinstance(entry, dict) else "",
)
def test_wrong_choices_are_named_with_what_is_allowed(options: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(RelPosConfigError) as refusal:
        RelativeMultiheadAttention(**{"embed_dim": SIZE, "num_heads": HEADS, **options})
    for part in named:
        assert part in str(refusal.value)


@pytest.mark.core
@pytest.mark.parametrize(
    ("inputs", "error", "named"),
    [
        ({"query": torch.zeros(7, 12)}, ValueError, ("query", "[7, 12]", "[batch, length, 12]", "unsqueeze(0)")),
        ({"query": torch.zeros(2, 7, 10)}, ValueError, ("query", "[2, 7, 10]", "[batch, length, 12]")),
        ({"key": torch.zeros(3, 7, 12)}, ValueError, ("[2, 7, 12]", "[3, 7, 12]", "batch")),
        ({"key": torch.zeros(2, 5, 12), "value": torch.zeros(2, 6, 12)}, ValueError, ("[2, 5, 12]", "[2, 6, 12]")),
        ({"key_padding_mask": torch.zeros(2, 6).bool()}, ValueError, ("key_padding_mask", "[2, 6]", "[2, 7]")),
        ({"key_padding_mask": torch.ones(2, 7).long()}, TypeError, ("key_padding_mask", "int64", "mask == 0")),
        ({"attn_mask": torch.zeros(7, 6)}, ValueError, ("attn_mask", "[7, 6]", "[7, 7]", "[6, 7, 7]", "[2, 3, 7, 7]")),
        ({"attn_mask": torch.zeros(2, 7, 7)}, ValueError, ("attn_mask", "[2, 7, 7]", "[6, 7, 7]")),
        ({"attn_mask": torch.zeros(7, 7).int()}, TypeError, ("attn_mask", "int32", "bool")),
        ({"query_offset": 1.0}, TypeError, ("1.0", "int")),
        ({"query_offset": torch.zeros(2).long()}, TypeError, ("[2]", "0-d")),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_what_does(
    inputs: dict[str, Any], error: type[Exception], named: tuple[str, ...]
):
    module = RelativeMultiheadAttention(SIZE, HEADS)
    with pytest.raises(error) as refusal:
        module(**{"query": torch.zeros(BATCH, LENGTH, SIZE), **inputs})
    for part in named:
        assert part in str(refusal.value)


# The bias


@pytest.mark.core
@pairs(keys=(None, 1, 4, 9), offset=(0, 3, -2, 30), on_device=(False, True))
def test_the_bias_depends_on_the_clipped_offset_alone(keys: int | None, offset: int, on_device: bool):
    bias = RelativePositionBias(HEADS, max_distance=2)
    values = bias(6, keys, torch.tensor(offset) if on_device else offset)
    table = bias.scheme.bias_table.weight
    assert values.shape == (HEADS, 6, 6 if keys is None else keys)
    for i in range(6):
        for j in range(values.shape[2]):
            assert torch.equal(values[:, i, j], table[:, max(-2, min(2, j - i - offset)) + 2])


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True])
def test_the_bias_with_t5_buckets_is_that_of_t5(causal: bool):
    bias = RelativePositionBias(
        HEADS, scheme=T5Bias(num_buckets=8, max_distance=10, init="trunc_normal"), causal=causal
    )
    table = bias.scheme.bucket_table.weight
    offsets = torch.arange(25)[None] - torch.arange(20)[:, None] - 2
    buckets = T5Attention._relative_position_bucket(offsets, not causal, 8, 10)
    # A causal table says nothing of the keys ahead.
    seen = torch.ones(20, 25, dtype=torch.bool) if not causal else offsets <= 0
    assert torch.equal(bias(20, 25, query_offset=2)[:, seen], table[:, buckets][:, seen])


def test_the_bias_in_plain_attention_equals_relative_attention():
    scheme = ClippedBias(max_distance=3)
    module, x = attention(schemes=scheme), tokens()
    bias = RelativePositionBias(HEADS, scheme=scheme).double()
    bias.scheme.load_state_dict(module.relpos.schemes[0].state_dict())
    q, k, v = (
        projection(x).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
        for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=bias(LENGTH))
    torch.testing.assert_close(module.out_proj(plain.transpose(1, 2).flatten(2)), module(x)[0], rtol=0, atol=1e-12)


def test_the_bias_starts_different_at_every_offset_and_learns():
    bias = RelativePositionBias(HEADS)
    assert bias.scheme.bias_table.weight.shape == (HEADS, 2 * 128 + 1)
    values = bias(200)
    assert len(values[0, 100].unique()) > 150
    values.square().sum().backward()
    assert bias.scheme.bias_table.weight.grad.all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_heads": 0}, ("num_heads", "0")),
        ({"max_distance": 0}, ("max_distance", "0")),
        ({"scheme": Shaw()}, ("scheme", "Shaw", "T5Bias", "RelativeMultiheadAttention")),
        ({"scheme": "fourier"}, ("'fourier'", "'clipped'")),
        ({"scheme": ["t5", "clipped"]}, ("scheme", "one only")),
        ({"causal": 1}, ("causal", "1")),
    ],
)
def test_wrong_choices_for_the_bias_are_named(options: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(RelPosConfigError) as refusal:
        RelativePositionBias(**{"num_heads": HEADS, **options})
    for part in named:
        assert part in str(refusal.value)


@pytest.mark.parametrize("lengths", [(0,), (2.0,), (3, 0)])
def test_lengths_that_are_none_are_refused(lengths: tuple[Any, ...]):
    with pytest.raises(ValueError, match="at least 1"):
        RelativePositionBias(HEADS)(*lengths)


# The sinusoids


@pytest.mark.core
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_the_encoding_is_the_formula_of_the_paper(size: int):
    encoding = SinusoidalPositionalEncoding(size).encoding(40, dtype=torch.float64)
    assert encoding.shape == (40, size)
    for position in range(40):
        for dim in range(size):
            angle = position / 10000 ** ((dim - dim % 2) / size)
            wanted = math.cos(angle) if dim % 2 else math.sin(angle)
            assert encoding[position, dim].item() == pytest.approx(wanted, abs=1e-12)


def test_the_encoding_is_added_to_any_length():
    module = SinusoidalPositionalEncoding(6)
    for length in (1, 5, 10_000):
        x = torch.randn(2, length, 6)
        torch.testing.assert_close(module(x) - x, module.encoding(length).expand(2, -1, -1), rtol=0, atol=1e-6)
    assert not module.state_dict()


def test_the_encoding_of_far_positions_keeps_its_phase_in_float32():
    far = SinusoidalPositionalEncoding(64).encoding(3, offset=1_000_000)
    assert far.dtype == torch.float32
    for row in range(3):
        for dim in range(64):
            angle = (1_000_000 + row) / 10000 ** ((dim - dim % 2) / 64)
            assert far[row, dim].item() == pytest.approx(math.cos(angle) if dim % 2 else math.sin(angle), abs=1e-6)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_offset_continues_where_the_last_part_ended(on_device: bool):
    module, x = SinusoidalPositionalEncoding(6), torch.randn(2, 9, 6)
    part = module(x[:, 4:], offset=torch.tensor(4) if on_device else 4)
    assert torch.equal(part, module(x)[:, 4:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_encoding_is_rounded_once_to_the_dtype_of_the_embeddings(dtype: torch.dtype):
    module = SinusoidalPositionalEncoding(8)
    output = module(torch.zeros(1, 300, 8, dtype=dtype))
    assert output.dtype == dtype
    assert torch.equal(output[0], module.encoding(300, dtype=torch.float64).to(dtype))


def test_a_shift_of_positions_is_a_rotation_of_the_encoding():
    """The property the paper chose it for: PE[pos + k] is a linear function of PE[pos]."""
    module = SinusoidalPositionalEncoding(8)
    near, far = module.encoding(20, dtype=torch.float64), module.encoding(20, offset=50, dtype=torch.float64)
    torch.testing.assert_close(near @ near.T, far @ far.T, rtol=0, atol=1e-10)


def test_dropout_on_the_encoding_acts_in_training_alone():
    module, x = SinusoidalPositionalEncoding(8, dropout=0.5), torch.ones(1, 50, 8)
    assert (module(x) == 0).any()
    assert not (module.eval()(x) == 0).any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"embed_dim": 0}, ("embed_dim", "0")),
        ({"embed_dim": 8, "base": 1.0}, ("base", "1.0", "above 1")),
        ({"embed_dim": 8, "dropout": 2}, ("dropout", "2")),
    ],
)
def test_wrong_choices_for_the_encoding_are_named(options: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(RelPosConfigError) as refusal:
        SinusoidalPositionalEncoding(**options)
    for part in named:
        assert part in str(refusal.value)


def test_embeddings_that_do_not_fit_are_refused():
    module = SinusoidalPositionalEncoding(8)
    with pytest.raises(ValueError, match=r"\[2, 5, 6\].*embed_dim=8"):
        module(torch.zeros(2, 5, 6))
    with pytest.raises(TypeError, match="token ids"):
        module(torch.zeros(2, 8, dtype=torch.long))
    with pytest.raises(TypeError, match="int or a 0-d integer tensor"):
        module(torch.zeros(2, 5, 8), offset=0.5)  # type: ignore[arg-type]


@pytest.mark.core
def test_importing_the_modules_loads_no_modelling_code():
    code = (
        "import sys, hf_relpos.nn\n"
        "print(*(m for m in sys.modules if m == 'transformers.modeling_utils' or "
        "(m.startswith('transformers.models.') and '.modeling_' in m and '.auto.' not in m)))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
