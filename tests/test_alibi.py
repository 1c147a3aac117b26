"""ALiBi: the authors' slopes, the distance without end, and no number rounded on the way."""

from __future__ import annotations

import math

import by_formula
import pytest
import reference
import tiny
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import cache_utils

from hf_relpos import ALiBi, RelPosConfig, patch_model, peft_modules_to_save, relpos_param_groups
from hf_relpos.masks import AttentionMask
from hf_relpos.nn import RelativePositionBias
from hf_relpos.schemes import AttentionGeometry
from hf_relpos.schemes.alibi import slopes_of


def published_slopes(heads: int) -> list[float]:
    """As the authors' code has it: a recursion on the power of two below."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**head for head in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return published_slopes(below) + published_slopes(2 * below)[0::2][: heads - below]


def formula(slopes: Tensor, gate: Tensor | None = None) -> by_formula.Formula:
    def attend(query, key, value, offsets, hidden, scale):
        bias = -(slopes if gate is None else slopes * gate)[:, None, None] * offsets.abs()
        return by_formula.weights_of(query @ key.mT * scale + bias, hidden) @ value

    return attend


@pytest.mark.core
@pytest.mark.parametrize("heads", [1, 2, 3, 6, 12, 40])
def test_slopes_follow_the_authors_recursion(heads: int):
    ours = slopes_of(heads, torch.float64, torch.device("cpu")).tolist()
    assert ours == pytest.approx(published_slopes(heads), rel=1e-14)


def test_twelve_heads_have_the_slopes_that_the_paper_names():
    expected = [2.0**-power for power in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)]
    torch.testing.assert_close(slopes_of(12, torch.float32, torch.device("cpu")), torch.tensor(expected))


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("learned", "gate"), [(False, "none"), (False, "head"), (True, "none"), (True, "head")])
@pytest.mark.parametrize("engine", ["auto", "eager", "blockwise"])
def test_the_layer_is_the_formula_with_its_gradients(causal: bool, learned: bool, gate: str, engine: str):
    geometry = AttentionGeometry(num_heads=3, head_dim=4, causal=causal)
    config = RelPosConfig(ALiBi(learned=learned), gate=gate, engine=engine)
    tensors = by_formula.states(geometry, length=150)
    fixed = torch.tensor(published_slopes(3), dtype=torch.float64)
    if learned:
        tensors["schemes.0.slopes.weight"] = fixed + 0.1
    if gate == "head":
        tensors["gate.weight"] = torch.tensor([0.5, 1.5, -1.0], dtype=torch.float64)

    def expected(leaves: dict[str, Tensor]) -> Tensor:
        offsets = torch.arange(150) - torch.arange(150)[:, None]
        attend = formula(leaves.get("schemes.0.slopes.weight", fixed), leaves.get("gate.weight"))
        hidden = by_formula.causal_of(geometry, offsets)
        return attend(leaves["query"], leaves["key"], leaves["value"], offsets, hidden, 0.5)

    mask = AttentionMask(150, 150, causal=causal)
    reference.assert_all_close(
        reference.output_and_gradients(
            lambda leaves: by_formula.layer_output(config, geometry, leaves, mask, 0.5), tensors
        ),
        reference.output_and_gradients(expected, tensors),
        1e-10,
    )


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("length", [6, 70, 300])
def test_a_model_is_exact_at_every_length(family: str, length: int):
    longest = {"max_position_embeddings" if family == "bert" else "n_positions": 300}
    slopes = torch.tensor(published_slopes(tiny.HEADS), dtype=torch.float64)
    expected = by_formula.stock_model(family, lambda layer: formula(slopes), **longest)
    stock = tiny.build(family, dtype=torch.float64, **longest)
    model = patch_model(stock, RelPosConfig("alibi", native="drop", gate="none"))
    batch = tiny.inputs(family, length)
    tiny.assert_close(tiny.real_logits(model, batch), tiny.real_logits(expected, batch), 1e-10)


@pytest.mark.core
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_cached_decoding_is_the_full_forward_pass(static: bool, window: int | None):
    model = patch_model(
        tiny.build("gpt2", dtype=torch.float64), RelPosConfig(ALiBi(learned=True), native="drop", window=window)
    )
    tiny.fill(model)
    ids = tiny.tokens(2, 30)
    full = tiny.logits(model, {"input_ids": ids})
    cache = cache_utils.StaticCache(model.config, 40) if static else cache_utils.DynamicCache(config=model.config)
    parts, start = [], 0
    for size in (7, 1, 5, 1, 1, 15):
        with torch.no_grad():
            out = model(ids[:, start : start + size], use_cache=True, **tiny.caching(model, cache))
        parts.append(out.logits)
        start += size
    tiny.assert_close(torch.cat(parts, 1), full, 1e-10)


def test_a_window_bounds_the_table_and_nothing_else_does():
    scheme = ALiBi().build(AttentionGeometry(num_heads=2, head_dim=4, causal=True))
    for mask, reach in (
        (AttentionMask(50, 50, causal=True), 49),
        (AttentionMask(50, 50), 49),
        (AttentionMask(50, 50, causal=True, window=6), 6),
        (AttentionMask(1, 50, query_offset=49, causal=True), 49),
        (AttentionMask(1, 50, query_offset=10), 39),
        (AttentionMask(1, 50, query_offset=torch.tensor(10)), 49),
    ):
        assert mask.reach == reach
        assert scheme.tables(mask.reach, torch.empty(0)).bias.shape == (2, 2 * reach + 1)


@pytest.mark.core
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bias_is_made_in_float32_also_in_a_half_precision_model(dtype: torch.dtype):
    for learned in (False, True):
        scheme = ALiBi(learned=learned).build(AttentionGeometry(num_heads=2, head_dim=4, causal=True)).to(dtype)
        bias = scheme.tables(1001, torch.empty(0, dtype=dtype)).bias
        assert bias.dtype == torch.float32
        assert bias[0].tolist() == [-abs(offset) / 16 for offset in range(-1001, 1002)]


def test_there_is_nothing_in_the_checkpoint_but_slopes_that_learn():
    geometry = AttentionGeometry(num_heads=3, head_dim=4, causal=True)
    assert not ALiBi().build(geometry).state_dict()
    learned = ALiBi(learned=True).build(geometry)
    assert not list(learned.buffers())
    assert {name: value.tolist() for name, value in learned.state_dict().items()} == {
        "slopes.weight": pytest.approx(published_slopes(3))
    }


def test_it_says_of_itself_what_it_is():
    fixed, learned = ALiBi(), ALiBi(learned=True)
    assert (fixed.horizon, fixed.learns, learned.learns) == (None, False, True)
    assert not RelPosConfig(fixed, native="keep").starts_exact
    assert not RelPosConfig(fixed, native="keep", gate="none").learns
    assert RelPosConfig(learned, native="keep", gate="none").learns
    assert RelPosConfig(fixed).function != RelPosConfig(learned).function


@pytest.mark.core
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_a_bias_on_its_own_it_has_no_end_and_the_dtype_asked_for(dtype: torch.dtype):
    bias = RelativePositionBias(2, scheme="alibi", dtype=dtype)(1, 300, 299)
    assert bias.dtype == dtype
    torch.testing.assert_close(bias[0, 0], torch.arange(-299, 1).to(torch.float32).div(16).to(dtype))


@pytest.mark.core
def test_a_patch_with_nothing_to_learn_has_parameter_groups_and_adapters_all_the_same():
    model = patch_model(tiny.build("bert"), RelPosConfig("alibi", native="keep", gate="none"))
    assert not tiny.added(model)
    groups = relpos_param_groups(model, lr=0.1)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=peft_modules_to_save(model)))
    assert all("lora" in name for name, parameter in adapted.named_parameters() if parameter.requires_grad)
