"""``output_attentions`` returns the true probabilities, relative terms included."""

from __future__ import annotations

import copy

import pytest
import slow
import tiny
import torch
from tiny import ENCODER_DECODERS, FAMILIES, assert_close, build, choices, few, fill, patched
from transformers import EncoderDecoderCache

from hf_relpos import patch_model

FIELDS = {
    **dict.fromkeys(FAMILIES, ("attentions",)),
    **dict.fromkeys(ENCODER_DECODERS, ("encoder_attentions", "decoder_attentions", "cross_attentions")),
}


def recorded(family, out):
    """All recorded weights, by kind and layer."""
    weights = {}
    for field in FIELDS[family]:
        layers = getattr(out, field)
        assert layers is not None, field
        assert len(layers) == tiny.LAYERS, field
        weights.update({(field, index): layer for index, layer in enumerate(layers)})
    return weights


@pytest.mark.core
@few()
def test_attentions_equal_an_independent_computation_and_sum_to_one(family, scheme, native, gate):
    config = choices(scheme, native, gate)
    model = fill(patch_model(build(family, dtype=torch.float64), config))
    reference = slow.reference_of(model, build(family, dtype=torch.float64), config)
    batch = tiny.inputs(family)
    with torch.no_grad():
        ours = recorded(family, model(**batch, output_attentions=True))
        expected = recorded(family, reference(**batch, output_attentions=True))
    for at, weights in ours.items():
        of_decoder = at[0] in ("decoder_attentions", "cross_attentions")
        # Rows of padding mean nothing; where no key may be seen they are zero.
        rows = weights.transpose(1, 2)
        rows = rows.flatten(0, 1) if of_decoder else rows[batch["attention_mask"].bool()]
        wanted = expected[at].transpose(1, 2)
        wanted = wanted.flatten(0, 1) if of_decoder else wanted[batch["attention_mask"].bool()]
        assert_close(rows.sum(-1), torch.ones_like(rows.sum(-1)), atol=1e-9)
        assert_close(rows, wanted, atol=1e-9)
        assert rows.min() >= 0


@pytest.mark.core
@few()
def test_asking_for_attentions_and_hidden_states_does_not_change_the_output(family, scheme, native, gate):
    for engine in ("auto", "blockwise"):
        model, batch = patched(family, scheme, native, gate, torch.float64, engine=engine), tiny.inputs(family)
        with torch.no_grad():
            out = model(**batch, output_attentions=True, output_hidden_states=True)
        recorded(family, out)
        states = out.encoder_hidden_states if family in ENCODER_DECODERS else out.hidden_states
        assert len(states) == tiny.LAYERS + 1
        assert_close(out.logits, tiny.logits(model, batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_reproduce_the_output_of_the_layer(family):
    """The first layer's weights, applied to its values and value vectors, give what goes into its output projection."""
    model = patched(family, "shaw-per-head", "gate", "head")
    batch = tiny.inputs(family, padding=False)
    name, attention = next(iter(tiny.self_attentions(model)))
    projections = {"bert": "output", "roberta": "output", "distilbert": "out_lin", "gpt2": "c_proj", "bart": "out_proj"}
    projection = projections.get(family.split("-")[0], "o")
    seen = {}
    modules = dict(model.named_modules())
    in_bert = name.rpartition(".")[0] + ".output.dense"
    after = modules[in_bert] if projection == "output" else getattr(attention, projection)
    after.register_forward_pre_hook(lambda _, given: seen.setdefault("output", given[0].detach()))
    values_of = {"bert": "value", "roberta": "value", "distilbert": "v_lin", "gpt2": "c_attn", "bart": "v_proj"}
    value = values_of.get(family.split("-")[0], "v")
    getattr(attention, value).register_forward_hook(lambda _, __, out: seen.setdefault("value", out.detach()))
    with torch.no_grad():
        out = model(**batch, output_attentions=True)
    weights = getattr(out, FIELDS[family][0])[0]
    values = seen["value"][..., -tiny.HIDDEN :].unflatten(-1, (tiny.HEADS, tiny.HEAD_DIM))
    length = weights.shape[-1]
    offsets = torch.arange(length)[None] - torch.arange(length)[:, None]
    state = attention.state_dict()
    vectors = state["relpos.schemes.0.value_table.weight"][:, offsets.clamp(-2, 2) + 2]
    vectors = vectors * state["relpos.gate.weight"][:, None, None, None]
    expected = torch.einsum("bhij,bjhd->bihd", weights, values) + torch.einsum("bhij,hijd->bihd", weights, vectors)
    assert_close(seen["output"], expected.flatten(-2))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_config_flag_records_attentions(family):
    """The flag is set on the config before and after the patch; stock Transformers refuses it for most attentions."""
    early = build(family)
    early.set_attn_implementation("eager")
    early.config.output_attentions = True
    model = patched(family, "sum")
    model.config.output_attentions = True
    fill(patch_model(early, choices("sum")))
    batch = tiny.inputs(family)
    with torch.no_grad():
        wanted = patched(family, "sum")(**batch, output_attentions=True)
        for other in (model, early, copy.deepcopy(model)):
            out = other(**batch)
            for at, weights in recorded(family, wanted).items():
                field, index = at
                if getattr(out, field) is None:
                    # The outer config does not reach the stacks of T5, in stock Transformers neither.
                    assert field != FIELDS[family][0] or family in ENCODER_DECODERS
                    continue
                assert_close(getattr(out, field)[index], weights)
    if family not in ENCODER_DECODERS:
        assert len(model(**batch).attentions) == tiny.LAYERS


@pytest.mark.parametrize("family", [*ENCODER_DECODERS, "gpt2", "bert-decoder"])
def test_attentions_of_a_cached_step_are_the_last_row_of_the_full_ones(family):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family, padding=False)
    field = "decoder_attentions" if family in ENCODER_DECODERS else "attentions"
    ids = "decoder_input_ids" if family in ENCODER_DECODERS else "input_ids"
    batch.pop("attention_mask")
    with torch.no_grad():
        full = getattr(model(**batch, output_attentions=True, use_cache=False), field)
        first = model(**{**batch, ids: batch[ids][:, :-1]}, use_cache=True)
        cache = tiny.cache_of(first)
        assert family not in ENCODER_DECODERS or isinstance(cache, EncoderDecoderCache)
        step = model(**{**batch, ids: batch[ids][:, -1:]}, **tiny.caching(model, cache), output_attentions=True)
    for whole, last in zip(full, getattr(step, field), strict=True):
        assert_close(last, whole[:, :, -1:])


def test_attentions_through_a_model_without_a_head():
    model = patched("bert", "sum", cls="BertModel")
    with torch.no_grad():
        out = model(input_ids=tiny.tokens(2, 8), output_attentions=True)
    assert [tuple(layer.shape) for layer in out.attentions] == [(2, tiny.HEADS, 8, 8)] * tiny.LAYERS


def test_window_hides_far_keys_in_the_attentions():
    model = patched("bert", "sum", window=2)
    with torch.no_grad():
        out = model(input_ids=tiny.tokens(2, 9), output_attentions=True)
    far = (torch.arange(9)[None] - torch.arange(9)[:, None]).abs() > 2
    for layer in out.attentions:
        assert (layer[..., far] == 0).all()
        assert (layer[..., ~far] > 0).all()
