"""The ways in which a plug-in for Transformers computes wrong numbers without an error, each with a test.

The letters count the rows of the table of traps in docs/architecture.md.
"""

from __future__ import annotations

import accelerate
import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import FAMILIES, SCHEMES, assert_close, build, choices, patched
from transformers import StaticCache, Trainer, TrainingArguments

import hf_relpos
from hf_relpos import RelPosConfig, Shaw, T5Bias, patch_model


@pytest.mark.core
@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_parameters_missing_from_a_plain_checkpoint_are_initialised(family, share_layers, tmp_path):
    """Transformers leaves them uninitialised, and asks the inner model, not the head's class, to fill them."""
    stock = build(family)
    stock.save_pretrained(tmp_path)
    cls = getattr(hf_relpos, f"RelPos{type(stock).__name__}")
    for init in ("zeros", "trunc_normal"):
        config = RelPosConfig(Shaw(40, init=init, init_std=0.1), native="gate", gate="head", share_layers=share_layers)
        # Uninitialised memory may happen to be zero: leave some that is not.
        waste = [torch.full((4096,), 1e30) for _ in range(50)]
        del waste
        model = cls.from_pretrained(tmp_path, relpos=config)
        for name, parameter in tiny.added(model).items():
            if "table" not in name:
                assert torch.equal(parameter, torch.ones_like(parameter)), name
            elif init == "zeros":
                assert torch.equal(parameter, torch.zeros_like(parameter)), name
            else:
                assert 0.05 < parameter.std() < 0.2, name
                assert parameter.abs().max() <= 0.2 + 1e-6, name


@pytest.mark.core
def test_a_base_model_inside_somebody_elses_model_is_initialised():
    """A user's own model that builds ours on the meta device and asks it for its values."""
    config = hf_relpos.RelPosGPT2Config(
        **{**tiny.config_of("gpt2").to_dict(), "relpos": RelPosConfig(Shaw(4, init="trunc_normal", init_std=0.1))}
    )
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in tiny.added(model).values():
            parameter.fill_(1e30)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = False
        module._is_hf_initialized = False
        model._init_weights(module)
    assert all(parameter.abs().max() <= 1 for parameter in tiny.added(model).values())


@pytest.mark.core
@pairs(family=("gpt2", "bert-decoder"), scheme=SCHEMES, apart=("family", "scheme"))
def test_b_static_cache_moves_its_position_before_attention_runs(family, scheme):
    model, ids = patched(family, scheme, "drop", "head", torch.float64), tiny.tokens(2, 10)
    full = tiny.logits(model, {"input_ids": ids}, use_cache=False)
    cache, start = StaticCache(model.config, max_cache_len=12), 0
    for size in (4, 1, 3, 1, 1):
        with torch.no_grad():
            out = model(ids[:, start : start + size], use_cache=True, **tiny.caching(model, cache))
        assert_close(out.logits, full[:, start : start + size])
        start += size


@pytest.mark.core
@pairs(family=FAMILIES, scheme=SCHEMES, apart=("family", "scheme"))
def test_c_offloaded_parameters_are_brought_back_before_they_are_read(family, scheme):
    """Accelerate's hooks act around `forward`; a parameter read from outside is a placeholder without data."""
    for gate in ("head", "token"):
        model = patched(family, scheme, "gate", gate)
        batch = tiny.inputs(family)
        expected = tiny.logits(model, batch)
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        assert torch.equal(tiny.logits(model, batch), expected)


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_c_shared_parameters_are_brought_back_too(family):
    model, batch = patched(family, "sum", "gate", "head", share_layers=True), tiny.inputs(family)
    expected = tiny.logits(model, batch)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert torch.equal(tiny.logits(model, batch), expected)


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_d_model_whose_class_was_swapped_still_records_attentions_and_hidden_states(family):
    """Also when no model of the new class was ever constructed, and in a model without a head."""
    for cls in (
        None,
        {"bert": "BertModel", "gpt2": "GPT2Model", "bart": "BartModel"}.get(family),
    ):
        model, batch = patched(family, "shaw", cls=cls), tiny.inputs(family)
        with torch.no_grad():
            out = model(**batch, output_attentions=True, output_hidden_states=True)
        stacks = ("encoder_", "decoder_") if family in tiny.ENCODER_DECODERS else ("",)
        for stack in stacks:
            assert len(out[f"{stack}attentions"]) == tiny.LAYERS
            assert len(out[f"{stack}hidden_states"]) == tiny.LAYERS + 1


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_e_label_smoothing_shifts_the_labels_where_stock_does(family, tmp_path):
    """The Trainer decides by the class's name."""
    batch = tiny.labelled(family, 9)
    if family in tiny.ENCODER_DECODERS:
        batch["decoder_input_ids"] = torch.cat([torch.zeros(3, 1, dtype=torch.long), batch["labels"][:, :-1]], 1)
    losses = []
    for model in (build(family), patch_model(build(family), choices("sum", "keep", "head"))):
        arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.3, use_cpu=True, report_to=[])
        with torch.no_grad():
            losses.append(Trainer(model, arguments).compute_loss(model, dict(batch)))
    assert_close(losses[1], losses[0])


def buffers_of(model):
    return {
        f"{path}.{name}": buffer.clone()
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
    }


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_f_buffers_that_no_checkpoint_has_are_right_after_loading(family, tmp_path):
    """Transformers gives them uninitialised memory. Ours are computed instead; a stored one must be filled again."""
    for scheme in ("shaw", "t5", "clipped"):
        model = patched(family, scheme, "drop", "head")
        model.save_pretrained(tmp_path)
        waste = [torch.full((4096,), 1e30) for _ in range(50)]
        del waste
        twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
        ours, theirs = buffers_of(model), buffers_of(twin)
        assert list(theirs) == list(ours)
        for name, buffer in ours.items():
            assert torch.equal(theirs[name], buffer), name
        batch = tiny.inputs(family)
        assert torch.equal(tiny.logits(twin, batch), tiny.logits(model, batch))


@pytest.mark.core
def test_f_bucket_numbers_are_right_after_loading_a_plain_checkpoint(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    model = hf_relpos.RelPosGPT2LMHeadModel.from_pretrained(tmp_path, relpos=T5Bias(8, 6))
    tiny.fill(model)
    expected = tiny.logits(tiny.fill(patch_model(build("gpt2"), T5Bias(8, 6))), tiny.inputs("gpt2"))
    assert torch.equal(tiny.logits(model, tiny.inputs("gpt2")), expected)
