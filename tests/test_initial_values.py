"""Added parameters have their documented start values, whichever way a model comes about."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import ENCODER_DECODERS, FAMILIES, GATES, NATIVE, assert_close, build, choices, patched
from transformers import EncoderDecoderConfig, EncoderDecoderModel

import hf_relpos
from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, patch_model

STD = 0.3
ZEROS = (Shaw(2), Shaw(3, rank=2, per_head=True, init_std=STD), T5Bias(8, 6), ClippedBias(4))
RANDOM = tuple(
    cls(**arguments, init="trunc_normal", init_std=STD)
    for cls, arguments in (
        (Shaw, {"max_distance": 30}),
        (Shaw, {"max_distance": 20, "per_head": True}),
        (Shaw, {"max_distance": 30, "rank": 3}),
        (T5Bias, {"num_buckets": 32, "max_distance": 40}),
        (ClippedBias, {"max_distance": 50}),
    )
)


def check_initial_values(model, config):
    """Values as the documentation has them: gates 1 (token gate: zeros, which give 1), tables as `init` says."""
    assert tiny.added(model)
    for name, parameter in tiny.added(model).items():
        value = parameter.detach().float()
        assert torch.isfinite(value).all(), name
        if name.endswith("relpos_gate.weight"):
            assert torch.equal(value, torch.ones(1)), name
        elif ".gate." in name:
            wanted = torch.ones_like(value) if config.gate == "head" else torch.zeros_like(value)
            assert torch.equal(value, wanted), name
        else:
            scheme = config.schemes[int(name.split(".schemes.")[1].split(".")[0])]
            check_table(name, value, scheme)


def check_table(name, value, scheme):
    zeros = torch.equal(value, torch.zeros_like(value))
    if name.endswith(".right"):
        # A factor that is not zero, or the other one would never learn.
        assert not zeros, name
        assert value.abs().max() <= 2 * scheme.init_std + 1e-6, name
    elif scheme.init == "zeros":
        assert zeros, name
    elif name.endswith(".left"):
        assert not zeros, name
    else:
        assert value.abs().max() <= 2 * scheme.init_std + 1e-6, name
        if value.numel() > 300:
            # The standard deviation of a normal distribution cut off at two of its own is 0.88 of it.
            assert 0.8 < value.std().item() / scheme.init_std < 0.96, name


def made(path, family, config, folder):
    """A model that came about by one of the paths."""
    stock = build(family)
    cls = getattr(hf_relpos, f"RelPos{type(stock).__name__}")
    auto = getattr(transformers, tiny.AUTO_HEAD[family])
    if path == "patch_model":
        return patch_model(stock, config)
    if path == "constructor":
        return cls(cls.config_class(**{**stock.config.to_dict(), "relpos": config, "model_type": None}))
    if path == "auto_from_config":
        return auto.from_config(cls.config_class(**{**stock.config.to_dict(), "relpos": config}))
    stock.save_pretrained(folder)
    if path == "plain_checkpoint":
        return cls.from_pretrained(folder, relpos=config)
    # Only the inner model was saved: the added parameters are missing two levels deep.
    assert path == "base_checkpoint"
    inner = getattr(stock, stock.base_model_prefix)
    inner.save_pretrained(folder / "inner")
    return cls.from_pretrained(folder / "inner", relpos=config)


PATHS = ("patch_model", "constructor", "auto_from_config", "plain_checkpoint", "base_checkpoint")


@pytest.mark.core
@pairs(
    family=FAMILIES, path=PATHS, gate=GATES, schemes=(ZEROS, RANDOM),
    # A head of T5 has no inner model of its own.
    possible=lambda family, path, *_: not (path == "base_checkpoint" and family in ENCODER_DECODERS),
)  # fmt: skip
def test_initial_values_are_as_documented_on_every_path(family, path, gate, schemes, tmp_path):
    config = RelPosConfig(schemes, native="gate", gate=gate, share_layers=gate == "token")
    check_initial_values(made(path, family, config, tmp_path), config)


@pytest.mark.core
@pairs(family=FAMILIES, native=("keep", "gate"), gate=GATES)
def test_plain_checkpoint_in_our_class_computes_what_it_computed(family, native, gate, tmp_path):
    stock = build(family, dtype=torch.float64)
    stock.save_pretrained(tmp_path)
    cls = getattr(hf_relpos, f"RelPos{type(stock).__name__}")
    config = RelPosConfig(ZEROS, native=native, gate=gate, share_layers=gate == "head")
    model, info = cls.from_pretrained(tmp_path, relpos=config, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    batch = tiny.inputs(family)
    assert_close(tiny.real_logits(model, batch), tiny.real_logits(stock, batch), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_checkpoint_in_our_class_equals_patching_it(family, tmp_path):
    """Also with native positions dropped: the table is then neither missing nor unexpected."""
    build(family).save_pretrained(tmp_path)
    for native in NATIVE:
        config = choices("sum", native, "token")
        model = patch_model(build(family), config)
        loaded, info = type(model).from_pretrained(tmp_path, relpos=config, output_loading_info=True)
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        assert type(loaded) is type(model)
        assert list(loaded.state_dict()) == list(model.state_dict())
        tiny.fill(model)
        tiny.fill(loaded)
        batch = tiny.inputs(family)
        assert torch.equal(tiny.logits(loaded, batch), tiny.logits(model, batch))
        assert RelPosConfig.of(loaded.config.relpos) == config


def test_plain_checkpoint_takes_a_scheme_or_its_name(tmp_path):
    build("bert").save_pretrained(tmp_path)
    for relpos in (Shaw(4), "shaw", ["shaw", T5Bias()], {"schemes": ["clipped"]}):
        model = hf_relpos.RelPosBertForMaskedLM.from_pretrained(tmp_path, relpos=relpos)
        assert model.config.relpos == RelPosConfig.of(relpos).to_dict()


def test_plain_checkpoint_without_choices_says_what_to_pass(tmp_path):
    build("bert").save_pretrained(tmp_path)
    with pytest.raises(hf_relpos.PatchStateError, match=r"relpos="):
        hf_relpos.RelPosBertForMaskedLM.from_pretrained(tmp_path)


def test_base_model_from_config_through_the_auto_class():
    for family in ("bert", "gpt2", "t5", "mt5", "umt5"):
        stock = tiny.config_of(family)
        cls = getattr(hf_relpos, f"RelPos{type(stock).__name__}")
        config = cls(**{**stock.to_dict(), "relpos": RelPosConfig(RANDOM)})
        model = transformers.AutoModel.from_config(config)
        assert type(model).__name__.startswith("RelPos")
        check_initial_values(model, RelPosConfig(RANDOM))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_initial_values_hold_in_low_precision(family, dtype, tmp_path):
    build(family).to(dtype).save_pretrained(tmp_path)
    config = RelPosConfig((Shaw(2), T5Bias(8, 6)), native="gate", gate="head")
    model = patch_model(build(family).to(dtype), config)
    loaded = type(model).from_pretrained(tmp_path, relpos=config)
    for other in (model, loaded):
        check_initial_values(other, config)
        assert {parameter.dtype for parameter in tiny.added(other).values()} == {dtype}


def test_encoder_decoder_of_two_initialises_what_a_checkpoint_lacks(tmp_path):
    """The outer model is not ours; it asks only its own `_init_weights` and that of the models directly inside it."""
    ours = RelPosConfig(RANDOM)
    parts = [hf_relpos.RelPosBertConfig(**{**tiny.config_of("bert").to_dict(), "relpos": ours}) for _ in range(2)]
    config = EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    model = EncoderDecoderModel(config)
    check_initial_values(model, ours)
    state = {name: tensor for name, tensor in model.state_dict().items() if "relpos" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    loaded = EncoderDecoderModel.from_pretrained(tmp_path)
    check_initial_values(loaded, ours)


def test_random_starts_differ_from_layer_to_layer_and_follow_the_seed():
    config = RelPosConfig(RANDOM)
    tables = []
    for _ in range(2):
        torch.manual_seed(3)
        tables.append(tiny.added(patch_model(build("bert"), config)))
    for name, parameter in tables[0].items():
        assert torch.equal(parameter, tables[1][name])
        if "table" in name and ".layer.0." in name:
            assert not torch.equal(parameter, tables[0][name.replace(".layer.0.", ".layer.1.")])


def test_patching_is_the_same_before_and_after_a_save(tmp_path):
    """A patched model's checkpoint wins over initial values, also for random starts."""
    model = patch_model(build("bert"), RelPosConfig(RANDOM))
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    for name, parameter in tiny.added(model).items():
        assert torch.equal(tiny.added(loaded)[name], parameter), name
    assert patched("bert").config.relpos["version"]
