"""Each scheme fills its tables as published, starts as documented, and refuses what it cannot do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import reference
import torch
from cases import CHOICES
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import ClippedBias, RelativeKeyQuery, RelPosConfig, RelPosConfigError, Shaw, T5Bias, patch_model
from hf_relpos.engines import attend
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import SCHEMES, AttentionGeometry, LearnedTables, RelativeTerms, Scheme, SchemeConfig
from hf_relpos.schemes.t5 import bucket_of, exact_distances

HEADS, DIM = 3, 4
ENCODER = AttentionGeometry(HEADS, DIM, causal=False)
DECODER = AttentionGeometry(HEADS, DIM, causal=True)

# One of each scheme that is learned tables, and option. What else there is has a file of tests of its own.
VARIANTS: dict[str, SchemeConfig] = {
    "shaw": Shaw(max_distance=2),
    "shaw, key only": Shaw(max_distance=2, value=False),
    "shaw, value only": Shaw(max_distance=2, key=False),
    "shaw, per head": Shaw(max_distance=2, per_head=True),
    "shaw, factorised": Shaw(max_distance=2, rank=2),
    "shaw, factorised per head": Shaw(max_distance=2, rank=2, per_head=True),
    "t5": T5Bias(num_buckets=8, max_distance=6),
    "clipped": ClippedBias(max_distance=2),
    "relative_key_query": RelativeKeyQuery(max_distance=2),
}


def tables_of(scheme: Scheme) -> RelativeTerms:
    """The tables of a scheme whose horizon is its own affair."""
    return scheme.tables(0, torch.empty(0))


# What the paper or the model's authors publish, per offset, from the scheme's module and its geometry.


def published_bias(config: SchemeConfig, table: Tensor, geometry: AttentionGeometry, offset: int) -> Tensor:
    """The bias ``[heads]`` at an offset."""
    if isinstance(config, T5Bias):
        bucket = T5Attention._relative_position_bucket(
            torch.tensor(offset), not geometry.causal, config.num_buckets, config.max_distance
        )
        return table[:, bucket]
    return table[:, max(-config.horizon, min(config.horizon, offset)) + config.horizon]


def test_every_scheme_of_learned_tables_is_covered_here():
    learned = {scheme for scheme in SCHEMES.values() if issubclass(scheme, LearnedTables)}
    assert {type(variant) for variant in VARIANTS.values()} == learned


@pytest.mark.core
@pytest.mark.parametrize("geometry", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("variant", [name for name, config in VARIANTS.items() if config.parts == {"bias"}])
def test_biases_are_the_published_ones_at_every_offset(variant: str, geometry: AttentionGeometry):
    config = VARIANTS[variant]
    scheme = config.build(geometry)
    (table,) = scheme.parameters()
    torch.nn.init.normal_(table)
    bias = tables_of(scheme).bias
    k = bias.shape[1] // 2
    assert k == config.horizon
    for offset in range(-4 * k, 1 if geometry.causal else 4 * k + 1):
        ours = bias[:, max(-k, min(k, offset)) + k]
        assert torch.equal(ours, published_bias(config, table, geometry, offset)), offset


@pytest.mark.core
@pytest.mark.parametrize("variant", [name for name, config in VARIANTS.items() if isinstance(config, Shaw)])
def test_shaw_in_attention_is_equations_3_and_4(variant: str):
    config = VARIANTS[variant]
    scheme = config.build(ENCODER).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)

    def table(learned: Any) -> Tensor:
        if learned is None:
            return torch.zeros(HEADS, 5, DIM, dtype=torch.float64)
        if config.rank is None:
            return learned.weight.expand(HEADS, -1, -1)
        return torch.einsum("tor,trd->tod", learned.left, learned.right).expand(HEADS, -1, -1)

    keys, values = table(scheme.key_table), table(scheme.value_table)
    q, k, v = torch.randn(3, 1, HEADS, 6, DIM, dtype=torch.float64)
    expected = torch.stack([reference.shaw_loops(q[0, h], k[0, h], v[0, h], keys[h], values[h]) for h in range(HEADS)])
    actual, _ = attend(q, k, v, tables_of(scheme), AttentionMask(6, 6), scale=DIM**-0.5)
    torch.testing.assert_close(actual[0], expected, rtol=0, atol=1e-10)


# Buckets


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_buckets_agree_on_every_distance_just_beyond_the_exact_ones(causal: bool):
    for num_buckets in (4, 8, 32, 64):
        exact = exact_distances(num_buckets, causal)
        for max_distance in range(exact + 1, exact + 40):
            offsets = torch.arange(-2 * max_distance, 2 * max_distance + 1)
            expected = T5Attention._relative_position_bucket(offsets, not causal, num_buckets, max_distance)
            assert torch.equal(bucket_of(offsets, num_buckets, max_distance, causal), expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (5, 2)])
def test_buckets_keep_the_shape_of_the_offsets(rows: int, columns: int):
    assert bucket_of(torch.zeros(rows, columns, dtype=torch.long), 8, 10, causal=False).shape == (rows, columns)


@pytest.mark.core
@pytest.mark.parametrize("engine", CHOICES)
def test_a_t5_that_swaps_its_bias_for_the_scheme_is_still_that_t5(engine: str):
    t5_config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
    )  # fmt: skip
    stock = T5ForConditionalGeneration(t5_config).double().eval()
    for stack in (stock.encoder, stock.decoder):
        torch.nn.init.normal_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight, std=2.0)
    patched = copy.deepcopy(stock)
    scheme = T5Bias(num_buckets=8, max_distance=12)
    patch_model(patched, RelPosConfig(scheme, native="drop", gate="none", engine=engine))
    for name in ("encoder", "decoder"):
        native = getattr(stock, name).block[0].layer[0].SelfAttention.relative_attention_bias.weight
        for block in getattr(patched, name).block:
            table = block.layer[0].SelfAttention.relpos.schemes[0].bucket_table.weight
            table.data.copy_(native.T)
    ids, labels = torch.randint(1, 50, (2, 21)), torch.randint(1, 50, (2, 17))
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    with torch.no_grad():  # there is an engine that takes a bias only if it does not learn
        torch.testing.assert_close(patched(**inputs).logits, stock(**inputs).logits, rtol=0, atol=1e-10)


# Starts


@pytest.mark.core
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_scheme_starts_at_zero_with_a_gradient_for_every_table(variant: str):
    scheme = VARIANTS[variant].build(ENCODER)
    q, k, v = torch.randn(3, 2, HEADS, 7, DIM)
    terms, mask = tables_of(scheme), AttentionMask(7, 7)
    tables = [table for table in (terms.bias, terms.query, terms.key, terms.value) if table is not None]
    assert all((table == 0).all() for table in tables)
    attend(q, k, v, terms, mask, scale=0.5)[0].square().sum().backward()
    for name, parameter in scheme.named_parameters():
        assert parameter.grad is not None, name
        # The right factor learns as soon as the left one has moved.
        assert parameter.grad.any() or name.endswith("right"), name


@pytest.mark.core
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_table_has_an_effect_at_every_reachable_row(variant: str):
    scheme = VARIANTS[variant].build(ENCODER).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    q, k, v = torch.randn(3, 1, HEADS, 15, DIM, dtype=torch.float64)

    def output() -> Tensor:
        return attend(q, k, v, tables_of(scheme), AttentionMask(15, 15), scale=0.5)[0]

    before = output()
    for name, parameter in scheme.named_parameters():
        for row in range(parameter.shape[1]):
            kept = parameter.data.clone()
            parameter.data[:, row] += 1.0
            # T5 counts distance 0 with the keys before, so the first bucket of the upper half stands for nothing.
            unused = isinstance(VARIANTS[variant], T5Bias) and row == VARIANTS[variant].num_buckets // 2
            assert ((output() - before).abs().max() > 1e-6) != unused, (name, row)
            parameter.data.copy_(kept)


@pytest.mark.parametrize("rank", [None, 4])
def test_a_random_start_has_the_spread_asked_for(rank: int | None):
    scheme = Shaw(max_distance=200, rank=rank, init="trunc_normal", init_std=0.3).build(AttentionGeometry(1, 64, False))
    table = scheme.key_table()
    # Cutting a normal distribution off at two deviations leaves 0.88 of its deviation; a product loses it twice.
    assert table.std().item() == pytest.approx(0.3 * 0.88 ** (1 if rank is None else 2), rel=0.1)
    assert abs(table.mean().item()) < 0.03
    if rank is None:
        assert table.abs().max() <= 0.6


def test_a_factorised_table_starts_at_zero_but_can_learn():
    scheme = Shaw(max_distance=20, rank=4, init_std=0.3).build(AttentionGeometry(1, 64, False))
    assert (scheme.key_table() == 0).all()
    assert scheme.key_table.right.std().item() == pytest.approx(0.3 * 0.88, rel=0.2)


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (Shaw(3), {"key_table.weight": (1, 7, DIM), "value_table.weight": (1, 7, DIM)}),
        (Shaw(3, value=False), {"key_table.weight": (1, 7, DIM)}),
        (Shaw(3, key=False, per_head=True), {"value_table.weight": (HEADS, 7, DIM)}),
        (Shaw(3, value=False, rank=2), {"key_table.left": (1, 7, 2), "key_table.right": (1, 2, DIM)}),
        (
            Shaw(3, value=False, rank=2, per_head=True),
            {"key_table.left": (HEADS, 7, 2), "key_table.right": (HEADS, 2, DIM)},
        ),
        (T5Bias(num_buckets=8, max_distance=6), {"bucket_table.weight": (HEADS, 8)}),
        (ClippedBias(max_distance=3), {"bias_table.weight": (HEADS, 7)}),
    ],
    ids=repr,
)  # fmt: skip
def test_parameters_have_the_documented_names_and_shapes(config: SchemeConfig, shapes: dict[str, tuple[int, ...]]):
    scheme = config.build(ENCODER)
    assert {name: tuple(parameter.shape) for name, parameter in scheme.named_parameters()} == shapes
    # Nothing in the checkpoint but parameters, and nothing computed that would have to be in it.
    assert not list(scheme.buffers())


def test_a_reset_brings_the_start_back():
    for name, config in VARIANTS.items():
        scheme = config.build(ENCODER)
        for module in scheme.modules():
            if hasattr(module, "reset_relpos_parameters"):
                for parameter in module.parameters():
                    torch.nn.init.ones_(parameter)
                module.reset_relpos_parameters()
        terms = tables_of(scheme)
        for table in (terms.bias, terms.query, terms.key, terms.value):
            assert table is None or (table == 0).all(), name


# Configs


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_scheme_config_survives_json(variant: str):
    config = VARIANTS[variant]
    assert RelPosConfig.from_dict({"schemes": [config.to_dict()]}).schemes == (config,)


@pytest.mark.core
@pytest.mark.parametrize(
    ("scheme", "values", "named"),
    [
        (Shaw, {"max_distance": 0}, ("max_distance", "0", "at least 1")),
        (Shaw, {"max_distance": -3}, ("max_distance", "-3", "at least 1")),
        (Shaw, {"max_distance": 2.5}, ("max_distance", "2.5", "whole number")),
        (Shaw, {"max_distance": True}, ("max_distance", "True", "whole number")),
        (Shaw, {"max_distance": "16"}, ("max_distance", "'16'", "whole number")),
        (Shaw, {"key": False, "value": False}, ("key", "False", "value")),
        (Shaw, {"value": 1}, ("value", "1", "True or False")),
        (Shaw, {"per_head": None}, ("per_head", "None", "True or False")),
        (Shaw, {"rank": 0}, ("rank", "0", "at least 1")),
        (Shaw, {"init": "ones"}, ("init", "'ones'", "'zeros'", "'trunc_normal'")),
        (Shaw, {"init_std": 0}, ("init_std", "0", "positive")),
        (Shaw, {"init_std": math.inf}, ("init_std", "inf", "positive")),
        (Shaw, {"init_std": math.nan}, ("init_std", "nan", "positive")),
        (ClippedBias, {"max_distance": 0}, ("max_distance", "0", "at least 1")),
        (ClippedBias, {"init": None}, ("init", "None", "'zeros'")),
        (T5Bias, {"num_buckets": 0}, ("num_buckets", "0", "at least 1")),
        (T5Bias, {"num_buckets": 2}, ("num_buckets", "2", "at least 4")),
        (T5Bias, {"num_buckets": 9}, ("num_buckets", "9", "even")),
        (T5Bias, {"max_distance": 0}, ("max_distance", "0", "at least 1")),
        (T5Bias, {"num_buckets": 32, "max_distance": 8}, ("max_distance", "8", "more than 8", "num_buckets=32")),
        (T5Bias, {"init_std": -1.0}, ("init_std", "-1.0", "positive")),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(scheme: Any, values: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(RelPosConfigError) as refusal:
        scheme(**values)
    for part in (scheme.__name__, *named):
        assert part in str(refusal.value)
    assert isinstance(refusal.value, ValueError)


def test_buckets_that_suit_an_encoder_only_are_refused_in_a_decoder():
    config = T5Bias(num_buckets=32, max_distance=12)
    config.build(ENCODER)
    with pytest.raises(RelPosConfigError, match=r"max_distance.*12.*more than 16.*causal"):
        config.build(DECODER)


def test_the_horizon_is_the_distance_from_which_all_looks_alike():
    assert [Shaw(5).horizon, ClippedBias(6).horizon, T5Bias(max_distance=70).horizon] == [5, 6, 70]
