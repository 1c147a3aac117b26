"""Case 22: a config object that the caller holds stays as it is, and what contains a model follows it."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
import transformers
from tiny import FAMILIES, KINDS, build, choices, fill, inputs, logits, patched
from transformers import EncoderDecoderConfig, EncoderDecoderModel, Trainer, TrainingArguments

import hf_relpos
from hf_relpos import RelPosConfig, Shaw, patch_model, unpatch_model
from hf_relpos.training.annealing import drop_native_positions


def assert_untouched(config, before):
    assert type(config) is type(before)
    assert vars(config) == vars(before)


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_patching_and_unpatching_leave_the_callers_objects_alone(family, native):
    model = build(family)
    plain, before = model.config, copy.deepcopy(model.config)
    patch_model(model, choices("sum", native))
    assert_untouched(plain, before)
    patched_one, before_unpatching = model.config, copy.deepcopy(model.config)
    assert patched_one is not plain
    unpatch_model(model)
    assert_untouched(patched_one, before_unpatching)
    assert_untouched(plain, before)
    type(model)(plain)  # a baseline from the same object


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_all_modules_of_a_model_go_on_sharing_what_they_shared(family):
    """An edit of the model's config reaches its layers, as in a stock model."""
    model = build(family)
    shared = {}
    for path, module in model.named_modules():
        if hasattr(module, "config"):
            shared.setdefault(id(module.config), []).append(path)
    for change in (lambda: patch_model(model, "shaw"), lambda: unpatch_model(model)):
        change()
        for paths in shared.values():
            assert len({id(model.get_submodule(path).config) for path in paths}) == 1


def test_classes_made_from_a_config_leave_it_alone():
    plain = tiny.config_of("bert")
    before = copy.deepcopy(plain)
    model = hf_relpos.RelPosBertModel(plain, relpos=Shaw(4))
    assert_untouched(plain, before)
    own, before = model.config, copy.deepcopy(model.config)
    hf_relpos.RelPosBertModel(own, relpos=RelPosConfig(Shaw(4), engine="eager"))
    unpatch_model(model)
    assert_untouched(own, before)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_dropping_native_positions_later_leaves_the_callers_object_alone(family):
    model = patched(family)
    held, before = model.config, copy.deepcopy(model.config)
    drop_native_positions(model)
    assert_untouched(held, before)
    configs = [module.config for module in model.modules() if isinstance(getattr(module, "config", None), type(held))]
    assert {config.relpos["native"] for config in configs} == {"drop"}


def test_a_trainer_may_make_its_model_twice_from_one_config(tmp_path):
    config = tiny.config_of("bert", num_labels=2)

    def model_init():
        return patch_model(transformers.BertForSequenceClassification(config), "shaw")

    rows = [{"input_ids": row, "labels": torch.tensor(0)} for row in tiny.tokens(4, 7)]
    arguments = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model_init=model_init, args=arguments, train_dataset=rows)
    for _ in range(2):
        trainer.train()
    assert hf_relpos.is_patched(trainer.model)


# What contains a model


def composite():
    config = EncoderDecoderConfig.from_encoder_decoder_configs(tiny.config_of("bert"), tiny.config_of("bert"))
    return tiny.randomise(EncoderDecoderModel(config)).eval()


def test_an_encoder_decoder_follows_its_parts_in_a_config_of_its_own(tmp_path):
    model = composite()
    held, before = model.config, copy.deepcopy(model.config.to_dict())
    parts = (held.encoder, held.decoder)
    patch_model(model.encoder, "shaw")
    assert model.config is not held
    assert model.config.encoder is model.encoder.config
    assert model.config.decoder is parts[1] is model.decoder.config  # this one was not patched
    assert (held.encoder, held.decoder) == parts
    assert held.to_dict() == before
    fill(model).save_pretrained(tmp_path)
    twin = EncoderDecoderModel.from_pretrained(tmp_path).eval()
    batch = {"input_ids": tiny.tokens(2, 7), "decoder_input_ids": tiny.tokens(2, 5)}
    assert torch.equal(logits(twin, batch), logits(model, batch))
    unpatch_model(model.encoder)
    assert model.config.encoder is model.encoder.config
    assert type(model.config.encoder) is transformers.BertConfig


def test_another_encoder_decoder_of_the_same_config_does_not_follow():
    config = EncoderDecoderConfig.from_encoder_decoder_configs(tiny.config_of("bert"), tiny.config_of("bert"))
    first, second = EncoderDecoderModel(config), EncoderDecoderModel(config)
    patch_model(first.encoder, "shaw")
    assert second.config is config
    assert type(second.config.encoder) is transformers.BertConfig
    EncoderDecoderModel(config)


def test_every_wrapper_around_a_model_follows():
    class Wrapper(torch.nn.Module):
        def __init__(self, model, config):
            super().__init__()
            self.inner, self.its_config = model, config

    class Outer(transformers.PreTrainedModel):
        def __init__(self, config, inner):
            super().__init__(config)
            self.inner = inner

    model = build("gpt2")
    wrapper, stranger = Wrapper(model, model.config), Wrapper(None, model.config)
    outer_config = transformers.PreTrainedConfig()
    outer_config.text_config = transformers.PreTrainedConfig()
    outer_config.text_config.deeper = model.config
    outer = Outer(outer_config, torch.nn.Sequential(wrapper))
    twice = Wrapper(outer, outer_config)
    patch_model(model, "shaw")
    assert wrapper.its_config is model.config
    assert twice.its_config is outer.config is not outer_config  # one copy for all who shared it
    assert outer.config.text_config.deeper is model.config
    assert type(stranger.its_config) is transformers.GPT2Config
    assert type(outer_config.text_config.deeper) is transformers.GPT2Config


def test_a_patch_inside_an_encoder_decoder_computes_the_same_as_outside():
    model = composite()
    alone = copy.deepcopy(model.encoder)
    ids = inputs("bert")["input_ids"]
    for one in (model.encoder, alone):
        fill(patch_model(one, choices("sum")))
    with torch.no_grad():
        assert torch.equal(model.encoder(ids).last_hidden_state, alone(ids).last_hidden_state)
