"""Cross-attention has no positions of ours and computes what it computed."""

from __future__ import annotations

import pytest
import slow
import tiny
import torch
from pairwise import pairs
from tiny import ENCODER_DECODERS, NATIVE, SCHEMES, assert_close, build, choices, fill
from transformers import EncoderDecoderConfig, EncoderDecoderModel

from hf_relpos import RelPosConfig, Shaw, patch_model, patch_report


def with_source(family, target, source):
    """A decoder's inputs: some tokens, and states of a source with padding."""
    states = torch.randn(2, source, tiny.HIDDEN, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    mask = torch.ones(2, source, dtype=torch.long)
    mask[1, -2:] = 0
    return {
        "input_ids": tiny.tokens(2, target),
        "encoder_hidden_states": states,
        "encoder_attention_mask": mask,
    }


@pytest.mark.core
@pairs(family=("gpt2", "bert-decoder"), native=NATIVE, lengths=((9, 5), (5, 12), (7, 7), (1, 9), (9, 3)))
def test_decoder_with_cross_attention_equals_the_slow_reference(family, native, lengths):
    target, source = lengths
    for scheme in ("shaw-per-head", "sum"):
        config = choices(scheme, native, "token")
        model = fill(patch_model(build(family, dtype=torch.float64, add_cross_attention=True), config))
        reference = slow.reference_of(model, build(family, dtype=torch.float64, add_cross_attention=True), config)
        batch = with_source(family, target, source)
        assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


@pytest.mark.core
@pairs(family=("gpt2", "bert-decoder", *ENCODER_DECODERS), scheme=SCHEMES, apart=("family", "scheme"))
def test_cross_attention_has_no_parameters_of_ours_and_is_not_counted(family, scheme):
    more = {} if family in ENCODER_DECODERS else {"add_cross_attention": True}
    model = fill(patch_model(build(family, **more), choices(scheme, "gate", "head")))
    assert [name for name in tiny.added(model) if "cross" in name.lower() or "EncDecAttention" in name] == []
    assert patch_report(model).num_layers == tiny.LAYERS * (2 if family in ENCODER_DECODERS else 1)


@pairs(family=ENCODER_DECODERS, native=NATIVE, lengths=((4, 13), (13, 4), (9, 9)))
def test_t5_with_any_source_and_target_length_equals_the_slow_reference(family, native, lengths):
    target, source = lengths
    config = choices("sum", native, "token")
    model = fill(patch_model(build(family, dtype=torch.float64), config))
    reference = slow.reference_of(model, build(family, dtype=torch.float64), config)
    batch = {
        "input_ids": tiny.tokens(2, source),
        "attention_mask": (torch.arange(source) < torch.tensor([[source], [source - 2]])).long(),
        "decoder_input_ids": tiny.tokens(2, target, seed=5),
    }
    assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_order_of_the_source_does_not_matter_to_cross_attention(family, window):
    """Relative positions, or a window, that leaked into it would make the order of the source matter."""
    config = RelPosConfig(Shaw(2), native="gate", gate="head", window=window)
    model = fill(patch_model(build(family, dtype=torch.float64, add_cross_attention=True), config))
    batch = with_source(family, 6, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    moved = {
        **batch,
        "encoder_hidden_states": batch["encoder_hidden_states"][:, order],
        "encoder_attention_mask": batch["encoder_attention_mask"][:, order],
    }
    assert_close(tiny.logits(model, moved), tiny.logits(model, batch))


def two_berts(dtype=torch.float64):
    config = EncoderDecoderConfig.from_encoder_decoder_configs(tiny.config_of("bert"), tiny.config_of("bert"))
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return tiny.randomise(EncoderDecoderModel(config).to(dtype)).eval()


@pytest.mark.core
@pytest.mark.parametrize(("target", "source"), [(4, 13), (13, 4), (9, 9)])
@pytest.mark.parametrize("native", NATIVE)
def test_encoder_decoder_of_two_berts_equals_the_slow_reference(native, target, source):
    config = choices("sum", native, "token")
    model, reference = two_berts(), two_berts()
    patch_model(model.encoder, config)
    patch_model(model.decoder, config)
    fill(model)
    slow.reference_of(model.encoder, reference.encoder, config)
    slow.reference_of(model.decoder, reference.decoder, config)
    batch = {
        "input_ids": tiny.tokens(2, source),
        "attention_mask": (torch.arange(source) < torch.tensor([[source], [source - 2]])).long(),
        "decoder_input_ids": tiny.tokens(2, target, seed=5),
    }
    assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_only_one_part_of_an_encoder_decoder_may_be_patched(part):
    config = choices("sum", "gate", "token")
    model, reference = two_berts(), two_berts()
    fill(patch_model(getattr(model, part), config))
    slow.reference_of(getattr(model, part), getattr(reference, part), config)
    batch = tiny.inputs("t5")
    assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


def test_encoder_decoder_of_two_berts_generates_what_a_full_pass_computes():
    model = two_berts()
    patch_model(model.encoder, choices("sum", "gate", "token"))
    patch_model(model.decoder, choices("sum", "drop", "token"))
    fill(model)
    ids = tiny.tokens(2, 9)
    arguments = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        without = model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=False, **arguments)
    assert torch.equal(made, without)
    full = tiny.logits(model, {"input_ids": ids, "decoder_input_ids": made[:, :-1]})
    assert torch.equal(full.argmax(-1), made[:, 1:])
