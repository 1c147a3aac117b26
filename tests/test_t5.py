"""T5, MT5 and UMT5: the bias they were pretrained with, and the buckets of our own T5 bias."""

from __future__ import annotations

import pytest
import slow
import tiny
import torch
from pairwise import pairs
from tiny import SCHEMES, T5_LIKES, assert_close, build, choices, fill, patched
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.t5.modeling_t5 import T5Attention

from hf_relpos import RelPosConfig, Shaw, T5Bias, patch_model, unpatch_model
from hf_relpos.schemes.t5 import bucket_of

STARTING_EXACT = [name for name in SCHEMES if choices(name).starts_exact]


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("num_buckets", [4, 6, 8, 16, 32, 64, 128, 320])
def test_buckets_equal_those_of_transformers_on_a_grid(num_buckets, causal):
    offsets = torch.arange(-3000, 3001)
    least = (num_buckets if causal else num_buckets // 2) // 2
    for max_distance in sorted({least + 1, least + 2, 20, 100, 127, 128, 129, 200, 777, 1000, 2048}):
        if max_distance <= least:
            continue
        expected = T5Attention._relative_position_bucket(offsets, not causal, num_buckets, max_distance)
        assert torch.equal(bucket_of(offsets, num_buckets, max_distance, causal), expected), max_distance
        assert expected.min() >= 0
        assert expected.max() < num_buckets


@pytest.mark.core
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(4, 3), (8, 5), (8, 20), (32, 128), (32, 17), (64, 40)])
@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2", "t5"])
def test_bias_in_a_model_equals_the_one_transformers_computes(family, num_buckets, max_distance):
    """On a grid of lengths, against the slow reference, which asks Transformers for the bucket of every pair."""
    config = RelPosConfig(T5Bias(num_buckets, max_distance), native="drop", gate="none")
    model = fill(patch_model(build(family, dtype=torch.float64), config))
    reference = slow.reference_of(model, build(family, dtype=torch.float64), config)
    for length in (1, 2, 7, 16):
        batch = {"input_ids": tiny.tokens(2, length)}
        if family == "t5":
            batch = {"input_ids": tiny.tokens(2, 3 * length), "decoder_input_ids": tiny.tokens(2, 2 * length + 1)}
        assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


@pytest.mark.core
@pairs(scheme=STARTING_EXACT, family=T5_LIKES, apart=("family", "scheme"))
def test_kept_bias_with_zero_tables_equals_stock(family, scheme):
    stock = build(family, dtype=torch.float64)
    tables = [module for name, module in stock.named_modules() if name.endswith("relative_attention_bias")]
    assert len(tables) == (2 * tiny.LAYERS if family == "umt5" else 2)
    assert min(table.weight.std() for table in tables) > 1
    model = patch_model(build(family, dtype=torch.float64), choices(scheme, "keep", "none"))
    batch = tiny.inputs(family)
    assert_close(tiny.logits(model, batch), tiny.logits(stock, batch))


@pytest.mark.core
@pairs(scheme=STARTING_EXACT, family=T5_LIKES, apart=("family", "scheme"))
def test_dropped_bias_with_zero_tables_equals_stock_with_that_table_at_zero(family, scheme):
    stock = build(family, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            if "relative_attention_bias" in name:
                parameter.zero_()
    model = patch_model(build(family, dtype=torch.float64), choices(scheme, "drop", "none"))
    batch = tiny.inputs(family)
    assert_close(tiny.logits(model, batch), tiny.logits(stock, batch))
    assert [name for name in model.state_dict() if "relative_attention_bias" in name] == []


@pytest.mark.core
@pytest.mark.parametrize("family", T5_LIKES)
def test_layers_hooked_are_all_of_the_encoder_all_self_of_the_decoder_none_of_cross(family):
    model = patched(family, "shaw", config={"num_layers": 3, "num_decoder_layers": 2})
    owners = [name.removesuffix(".relpos") for name, _ in model.named_modules() if name.endswith(".relpos")]
    assert sum(name.startswith("encoder") for name in owners) == 3
    assert sum(name.startswith("decoder") for name in owners) == 2
    assert all(name.endswith("SelfAttention") for name in owners)
    # And they are asked in a forward pass, once each.
    calls = []
    for name, module in model.named_modules():
        if name.endswith(".relpos"):
            module.register_forward_hook(lambda *_, name=name: calls.append(name.removesuffix(".relpos")))
    tiny.logits(model, tiny.inputs(family))
    assert sorted(calls) == sorted(owners)


@pytest.mark.parametrize("family", T5_LIKES)
def test_encoder_is_bidirectional_and_decoder_causal(family):
    model = patched(family, "t5", "drop", "none")
    directions = {name: module.causal for name, module in model.named_modules() if hasattr(module, "bucket_table")}
    assert {name.split(".")[0]: causal for name, causal in directions.items()} == {"encoder": False, "decoder": True}


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operator returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_sparse:
                self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", ["t5", "umt5"])
def test_no_tensor_has_the_length_squared(family, native, monkeypatch):
    """Not the native bias, not the zeros of cross-attention, not a mask: blockwise, forward and backward."""
    monkeypatch.setattr("hf_relpos.engines.blockwise.BLOCK_SCORES", 1)
    length = 1024
    model = patched(family, "sum", native, "head", engine="blockwise")
    batch = {"input_ids": tiny.tokens(1, length), "decoder_input_ids": tiny.tokens(1, length, seed=3)}
    with LargestTensor() as largest:
        model(**batch, use_cache=False).logits.sum().backward()
    assert 0 < largest.size < length * length


@pytest.mark.parametrize("family", T5_LIKES)
def test_native_bias_beyond_the_layers_named_still_acts(family):
    """A layer that gets nothing of ours passes on the bias it was pretrained with."""
    for layers in ([0], [1]):
        model = patch_model(build(family, dtype=torch.float64), RelPosConfig(Shaw(2), native="keep", layers=layers))
        batch = tiny.inputs(family)
        assert_close(tiny.logits(model, batch), tiny.logits(build(family, dtype=torch.float64), batch))


@pytest.mark.parametrize("family", T5_LIKES)
def test_native_bias_of_default_size_equals_stock_at_its_bucket_borders(family):
    """32 buckets up to distance 128: every border is passed."""
    arguments = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
    stock = build(family, dtype=torch.float64, **arguments)
    model = patch_model(build(family, dtype=torch.float64, **arguments), choices("shaw", "gate", "none"))
    batch = {"input_ids": tiny.tokens(1, 150), "decoder_input_ids": tiny.tokens(1, 140, seed=5)}
    assert_close(tiny.logits(model, batch), tiny.logits(stock, batch))


@pytest.mark.parametrize("family", T5_LIKES)
def test_dropped_bias_comes_back_in_the_same_place(family):
    model = unpatch_model(patched(family, "shaw", "drop", "none"))
    stock = build(family)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in stock.named_modules()]
    flags = [name for name, module in stock.named_modules() if getattr(module, "has_relative_attention_bias", False)]
    assert flags == [
        name for name, module in model.named_modules() if getattr(module, "has_relative_attention_bias", False)
    ]
