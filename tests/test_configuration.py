"""The record of all choices: equal after JSON, frozen, and carried by the config of a model."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest
import tiny
import torch
import transformers
from tiny import FAMILIES, build, choices, patched

import hf_relpos
from hf_relpos import (
    ClippedBias,
    PatchStateError,
    RelPosConfig,
    Shaw,
    T5Bias,
    UnsupportedModelError,
    is_patched,
    patch_model,
)

EVERYTHING = RelPosConfig(
    [Shaw(3, rank=2, init="trunc_normal", init_std=0.1), T5Bias(8, 6), ClippedBias(5)],
    native="drop", gate="token", window=9, layers=(3, 0, 3), share_layers=True, engine="blockwise",
)  # fmt: skip


@pytest.mark.core
@tiny.few("bert")
def test_choices_survive_json(family, scheme, native, gate):
    config = choices(scheme, native, gate)
    again = RelPosConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert RelPosConfig.of(json.loads(json.dumps(config.to_dict()))) == config


def test_every_choice_survives_json_pickle_and_copies():
    for again in (
        RelPosConfig.from_dict(json.loads(json.dumps(EVERYTHING.to_dict()))),
        pickle.loads(pickle.dumps(EVERYTHING)),
        copy.deepcopy(EVERYTHING),
    ):
        assert again == EVERYTHING
    assert EVERYTHING.layers == (0, 3)
    assert EVERYTHING.to_dict()["layers"] == [0, 3]
    assert EVERYTHING.to_dict()["version"] == hf_relpos.__version__


def test_json_names_every_field_of_every_scheme():
    for scheme, values in zip(EVERYTHING.schemes, EVERYTHING.to_dict()["schemes"], strict=True):
        assert values["type"] == scheme.name
        assert set(values) == {"type", *(field.name for field in dataclasses.fields(scheme))}
    assert set(EVERYTHING.to_dict()) == {"format", "version", *(field.name for field in dataclasses.fields(EVERYTHING))}


@pytest.mark.parametrize("name", tiny.SCHEMES)
def test_a_printed_scheme_is_short_and_can_be_read_back(name):
    for scheme in RelPosConfig(tiny.SCHEMES[name]).scheme_configs:
        assert eval(str(scheme), vars(hf_relpos)) == scheme
        assert len(str(scheme)) < len(repr(scheme)) or str(scheme) == repr(scheme)
    assert str(Shaw()) == "Shaw(max_distance=16)"
    assert str(EVERYTHING.schemes[0]) == "Shaw(max_distance=3, rank=2, init='trunc_normal', init_std=0.1)"


def test_defaults_are_the_documented_ones():
    config = RelPosConfig("shaw")
    assert config.schemes == (Shaw(),)
    assert (config.native, config.gate, config.engine) == ("gate", "head", "auto")
    assert (config.window, config.layers, config.share_layers) == (None, None, False)
    assert Shaw() == Shaw(max_distance=16, key=True, value=True, per_head=False, rank=None, init="zeros", init_std=0.02)
    assert T5Bias() == T5Bias(num_buckets=32, max_distance=128)


@pytest.mark.parametrize("record", [EVERYTHING, Shaw(), T5Bias(), ClippedBias()])
def test_records_are_frozen(record):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, 1)


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_config_of_a_model_carries_the_choices_in_every_stack(family):
    model = patched(family, "sum", "gate", "token", window=4)
    wanted = choices("sum", "gate", "token", window=4).to_dict()
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, transformers.PreTrainedModel)}
    assert len(configs) == (3 if family in tiny.T5_LIKES else 1)
    for config in configs.values():
        assert config.relpos == wanted
        assert config.model_type.startswith("relpos-")
    assert json.loads(model.config.to_json_string())["relpos"] == wanted
    assert model.config.to_diff_dict()["relpos"] == wanted


def test_config_field_takes_what_patch_model_takes():
    for relpos in ("shaw", Shaw(3), ["shaw", T5Bias()], RelPosConfig("clipped"), {"schemes": ["t5"]}):
        config = hf_relpos.RelPosBertConfig(relpos=relpos)
        assert config.relpos == RelPosConfig.of(relpos).to_dict()
        config.relpos = relpos
        assert config.relpos == RelPosConfig.of(relpos).to_dict()
        assert json.loads(config.to_json_string())["relpos"] == config.relpos


def test_users_config_object_is_not_changed_by_the_patch():
    stored = EVERYTHING.to_dict()
    relpos = {**stored, "layers": None}
    before = copy.deepcopy(relpos)
    patch_model(build("bert"), relpos)
    assert relpos == before


def test_config_class_is_a_subclass_of_the_familys():
    assert issubclass(hf_relpos.RelPosBertConfig, transformers.BertConfig)
    assert issubclass(hf_relpos.RelPosBertForMaskedLM, transformers.BertForMaskedLM)
    assert hf_relpos.RelPosBertForMaskedLM.config_class is hf_relpos.RelPosBertConfig


@pytest.mark.parametrize("family", FAMILIES)
def test_deep_copied_config_makes_an_equal_model(family):
    model = patched(family, "sum", "gate", "head")
    config = copy.deepcopy(model.config)
    assert type(config) is type(model.config)
    assert config.to_dict() == model.config.to_dict()
    twin = type(model)(config)
    twin.load_state_dict(model.state_dict())
    tiny.assert_close(tiny.logits(twin.eval(), tiny.inputs(family)), tiny.logits(model, tiny.inputs(family)))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_model_type_follows_the_class_also_in_a_loaded_config(family, tmp_path):
    """A loaded config holds its model type itself, besides its class."""
    plain, model = build(family), patched(family)
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "patched")
    loaded = patch_model(type(plain).from_pretrained(tmp_path / "plain"), "shaw")
    again = hf_relpos.unpatch_model(type(model).from_pretrained(tmp_path / "patched"))
    assert loaded.config.model_type == type(model.config).model_type == f"relpos-{type(plain.config).model_type}"
    assert again.config.model_type == type(plain.config).model_type


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.KINDS)
def test_plain_config_with_relpos_beside_it_becomes_a_patched_one(family, tmp_path):
    """As fine-tuning scripts load: the config first, with changes of its own, then the model."""
    stock = build(family)
    stock.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=3)
    cls = getattr(hf_relpos, f"RelPos{type(stock).__name__}")
    model = cls.from_pretrained(tmp_path, config=config, relpos=Shaw(4)).eval()
    assert type(config) is type(stock.config)  # the one given is left as it was
    assert not hasattr(config, "relpos")
    assert type(model.config) is cls.config_class
    assert model.config.num_labels == 3
    assert model.config.relpos == RelPosConfig(Shaw(4)).to_dict()
    tiny.assert_close(tiny.logits(model, tiny.inputs(family)), tiny.logits(stock, tiny.inputs(family)))
    expected = tiny.logits(tiny.fill(model), tiny.inputs(family))
    model.save_pretrained(tmp_path / "again")
    again = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path / "again")
    assert type(again) is cls
    read, written = again.config.to_dict(), model.config.to_dict()
    assert {**read, "_name_or_path": ""} == {**written, "_name_or_path": ""}
    assert torch.equal(tiny.logits(again, tiny.inputs(family)), expected)
    assert is_patched(cls(config, relpos="t5"))


def test_plain_config_that_was_read_from_a_patched_folder_gives_a_patched_model(tmp_path):
    model = patched("bert", "sum", "drop")
    model.save_pretrained(tmp_path)
    config = transformers.BertConfig.from_pretrained(tmp_path)
    assert type(config) is transformers.BertConfig
    twin = hf_relpos.RelPosBertForMaskedLM.from_pretrained(tmp_path, config=config)
    assert torch.equal(tiny.logits(twin, tiny.inputs("bert")), tiny.logits(model, tiny.inputs("bert")))


def test_relpos_beside_a_patched_config_may_differ_in_the_engine_only(tmp_path):
    patched("bert", "shaw").save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    load = hf_relpos.RelPosBertForMaskedLM.from_pretrained
    model = load(tmp_path, config=config, relpos=choices("shaw", engine="eager"))
    assert (model.config.relpos["engine"], config.relpos["engine"]) == ("eager", "auto")
    with pytest.raises(PatchStateError, match="only the engine may differ"):
        load(tmp_path, config=config, relpos="t5")


@pytest.mark.core
def test_config_without_relative_positions_is_an_error_that_says_where_to_give_them(tmp_path):
    build("bert").save_pretrained(tmp_path)
    cls, config = hf_relpos.RelPosBertForMaskedLM, tiny.config_of("bert")
    for call, given in (
        (lambda: cls(config), "a BertConfig"),
        (lambda: cls.from_pretrained(tmp_path, config=config), "a BertConfig"),
        (lambda: cls.from_pretrained(tmp_path), "a RelPosBertConfig"),
        (lambda: cls(hf_relpos.RelPosBertConfig()), "a RelPosBertConfig"),
    ):
        with pytest.raises(PatchStateError) as caught:
            call()
        for words in ("RelPosBertForMaskedLM", given, "relpos=Shaw", "RelPosBertConfig.from_pretrained", "patch_model"):
            assert words in str(caught.value)


class OwnBertConfig(transformers.BertConfig):
    """A config class of a user's own; as the config of a patched model it would lose the attention."""


@pytest.mark.parametrize(
    "config", [transformers.GPT2Config(), hf_relpos.RelPosGPT2Config(relpos="shaw"), OwnBertConfig(), 3]
)
def test_config_of_another_class_is_refused_by_name(config):
    with pytest.raises(UnsupportedModelError, match=rf"{type(config).__name__} .*RelPosBertConfig, or a BertConfig"):
        hf_relpos.RelPosBertForMaskedLM(config, relpos="shaw")
