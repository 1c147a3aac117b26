"""`inspect_model`: every number is what a slow and obvious computation gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny
import torch
from test_pipelines import tokenizer
from tiny import patched
from torch import nn

import hf_relpos
from hf_relpos import PatchStateError, RelPosConfig, TextsError, inspect_model, patch_report
from hf_relpos.inspection.attention import AS_IT_IS, WITHOUT_NATIVE, WITHOUT_RELATIVE

TEXTS = ["w1 w2 w3 w4 w5 w6 w7", "w9", "w7 w1 w30 w2 w2"]
READ = [text for text in TEXTS if " " in text]  # in one token there is no distance


def inspected(model, **more):
    return inspect_model(model, TEXTS, tokenizer(), **more)


def weights(model, text):
    """For each layer, the attention weights `[heads, queries, keys]` while a model reads a text."""
    ids = torch.tensor([tokenizer()(text)["input_ids"]])
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), ids[:, :-1]], 1)
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    fields = ("attentions",)
    if model.config.is_encoder_decoder:
        fields = ("encoder_attentions", "decoder_attentions")
    return [layer[0].numpy() for field in fields for layer in out[field]]


def readings(model):
    """The weights in all layers, for each text."""
    return [weights(model, text) for text in READ]


def slow_mass(read, layer, head, offset):
    total, tokens = 0.0, 0
    for layers in read:
        table = layers[layer][head]
        tokens += len(table)
        for query in range(len(table)):
            if 0 <= query + offset < len(table):
                total += table[query][query + offset]
    return total / tokens


def slow_moved(read, read_without, layer, head):
    total, tokens = 0.0, 0
    for layers, without in zip(read, read_without, strict=True):
        for first, second in zip(layers[layer][head], without[layer][head], strict=True):
            total += sum(max(0.0, a - b) for a, b in zip(first, second, strict=True))
            tokens += 1
    return total / tokens


def eager(family, **config):
    return tiny.build(family, **config, attn_implementation="eager")


def mean_position(model):
    """The same model, in which each token has the mean of the position vectors of its text."""

    class Mean(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids).mean(-2, keepdim=True).expand(*ids.shape, -1)

    embeddings = model.bert.embeddings
    made = Mean(*embeddings.position_embeddings.weight.shape)
    made.weight = embeddings.position_embeddings.weight
    embeddings.position_embeddings = made
    return model


@pytest.mark.core
def test_attention_is_that_of_the_model_and_of_those_that_lack_its_positions():
    model = patched("bert", "sum", "keep")
    attention = inspected(model).attention
    plain = eager("bert")
    without_absolute = tiny.fill(hf_relpos.patch_model(mean_position(tiny.build("bert")), tiny.choices("sum", "keep")))
    models = {AS_IT_IS: model, WITHOUT_RELATIVE: plain, WITHOUT_NATIVE: without_absolute}
    others = {way: readings(one) for way, one in models.items()}
    assert (attention.layers, attention.texts, attention.tokens, attention.farthest) == (["0", "1"], 2, 12, 6)
    assert list(attention.mass) == list(others)
    for way, other in others.items():
        for layer in range(tiny.LAYERS):
            for head in range(tiny.HEADS):
                expected = [slow_mass(other, layer, head, offset) for offset in range(-6, 7)]
                np.testing.assert_allclose(attention.mass[way][layer, head], expected, atol=1e-5)
                if way != AS_IT_IS:
                    moved = slow_moved(others[AS_IT_IS], other, layer, head)
                    assert attention.moved[way][layer, head] == pytest.approx(moved, abs=1e-5)
    relative, native = attention.moved[WITHOUT_RELATIVE], attention.moved[WITHOUT_NATIVE]
    np.testing.assert_allclose(attention.relative_share, relative / (relative + native), rtol=1e-6)
    assert attention.moved[WITHOUT_RELATIVE].min() > 0.01


def slow_added(model, text, layer):
    """What the relative terms of a BERT add to each score, `[heads, queries, keys]`, by their formula."""
    attention = model.bert.encoder.layer[layer].attention.self
    ids = torch.tensor([tokenizer()(text)["input_ids"]])
    with torch.no_grad():
        hidden = model.bert(ids, output_hidden_states=True).hidden_states[layer][0]
        projected = [part(hidden).view(-1, tiny.HEADS, tiny.HEAD_DIM) for part in (attention.query, attention.key)]
        queries, keys = (states.transpose(0, 1) for states in projected)
        terms = [scheme.tables(len(hidden), torch.empty(0)) for scheme in attention.relpos.schemes]
        added = torch.zeros(tiny.HEADS, len(hidden), len(hidden))
        for head, i, j in np.ndindex(added.shape):
            for one in terms:
                for table, vector in ((one.query, queries[head, i]), (one.key, keys[head, j]), (one.bias, None)):
                    if table is not None:
                        k = table.shape[1] // 2
                        row = table[min(head, len(table) - 1), min(max(j - i, -k), k) + k]
                        added[head, i, j] += row if vector is None else vector @ row / tiny.HEAD_DIM**0.5
            gate = attention.relpos.gate
            is_token = hasattr(gate, "bias")
            logit = queries[head, i] @ gate.weight[head] + gate.bias[head] if is_token else None
            added[head, i, j] *= 2 * torch.sigmoid(logit) if is_token else gate.weight[head]
    return added.numpy()


@pytest.mark.parametrize("gate", ["head", "token"])
@pytest.mark.parametrize("scheme", ["sum", "key-query"])
def test_what_is_added_to_scores_is_what_the_formula_adds(scheme, gate):
    model = patched("bert", scheme, gate=gate)
    attention = inspected(model).attention
    for layer in range(tiny.LAYERS):
        scores = [slow_added(model, text, layer) for text in READ]
        for head in range(tiny.HEADS):
            for offset in range(-6, 7):
                pairs = np.concatenate([one[head].diagonal(offset) for one in scores if abs(offset) < len(one[head])])
                assert attention.added[layer, head, offset + 6] == pytest.approx(pairs.mean(), abs=1e-4)


def test_a_native_bias_is_not_what_relative_positions_add():
    model = patched("t5", "clipped", "keep", "none")
    attention = inspected(model).attention
    for place, stack in enumerate((model.encoder, model.decoder)):
        table = stack.block[1].layer[0].SelfAttention.relpos.schemes[0].bias_table.weight.detach()
        np.testing.assert_allclose(attention.added[2 * place + 1, :, 1:7], table[:, :6], atol=1e-5)


def test_a_rotation_adds_what_it_turns_and_a_decoder_looks_back_only():
    model = patched("gpt2", "rotary", "keep", "none")
    attention = inspected(model).attention
    assert np.isnan(attention.added[..., 7:]).all()
    np.testing.assert_allclose(attention.added[..., 6], 0, atol=1e-5)  # a token meets itself as it was
    assert (np.abs(attention.added[..., :6]) > 1e-3).all()


@pytest.mark.parametrize("scheme", ["rotary", "convolution", "alibi"])
def test_whatever_a_scheme_does_is_taken_away(scheme):
    attention = inspected(patched("gpt2", scheme, "keep")).attention
    plain = readings(eager("gpt2"))
    for layer in range(tiny.LAYERS):
        expected = [slow_mass(plain, layer, 1, offset) for offset in range(-6, 7)]
        np.testing.assert_allclose(attention.mass[WITHOUT_RELATIVE][layer, 1], expected, atol=1e-5)


@pytest.mark.parametrize("share_layers", [False, True])
def test_encoder_and_decoder_are_told_apart_and_native_biases_are_taken_away(share_layers):
    config = RelPosConfig(["shaw", "clipped"], native="keep", share_layers=share_layers)
    model = tiny.fill(hf_relpos.patch_model(tiny.build("t5"), config))
    attention = inspected(model).attention
    assert attention.layers == ["0", "1", "decoder 0", "decoder 1"]
    stock, unbiased = eager("t5"), tiny.build("t5")
    with torch.no_grad():
        for name, parameter in unbiased.named_parameters():
            if "relative_attention_bias" in name:
                parameter.zero_()
    models = {WITHOUT_RELATIVE: stock, WITHOUT_NATIVE: tiny.fill(hf_relpos.patch_model(unbiased, config))}
    for way, one in models.items():
        other = readings(one)
        for layer in range(4):
            expected = [slow_mass(other, layer, 0, offset) for offset in range(-6, 7)]
            np.testing.assert_allclose(attention.mass[way][layer, 0], expected, atol=1e-5)


def test_without_pretrained_positions_all_is_relative():
    attention = inspected(patched("bert", "shaw", "drop")).attention
    assert set(attention.moved) == {WITHOUT_RELATIVE}
    assert attention.relative_share is None


def test_layers_without_relative_positions_are_left_out():
    attention = inspected(patched("bert", "shaw", layers=[1])).attention
    assert attention.layers == ["1"]
    expected = slow_mass(readings(patched("bert", "shaw", layers=[1])), 1, 0, 2)
    assert attention.mass[AS_IT_IS][0, 0, attention.farthest + 2] == pytest.approx(expected, abs=1e-5)


@pytest.mark.core
def test_tables_are_read_as_they_are():
    model = patched("bert", "sum")
    learned = inspect_model(model).learned
    own = model.bert.encoder.layer[1].attention.self.relpos.schemes
    vectors = (own[0].value_table.left @ own[0].value_table.right).detach()
    for head, rows in enumerate(vectors):
        for offset, row in enumerate(rows):
            assert learned.tables["value"].values[1, head, offset] == pytest.approx(float(row.norm()), rel=1e-5)
    for first in range(5):
        for second in range(5):
            cosine = torch.cosine_similarity(vectors[:, first], vectors[:, second], dim=-1).mean()
            assert learned.tables["value"].similarity[1, first, second] == pytest.approx(float(cosine), abs=1e-5)
    reach = learned.tables["bias"].values.shape[-1] // 2
    for head in range(tiny.HEADS):
        for offset in (-reach, -1, 0, 2):
            expected = own[2].bias_table.weight[head, min(max(offset + 3, 0), 6)].item()
            expected += own[1].tables(reach, torch.empty(0)).bias[head, offset + reach].item()
            assert learned.tables["bias"].values[1, head, offset + reach] == pytest.approx(expected, rel=1e-5)
    assert learned.tables["bias"].similarity is None


@pytest.mark.parametrize("scheme", tiny.SCHEMES)
@pytest.mark.parametrize(("family", "gate"), [("bert", "head"), ("t5", "token")])
def test_the_parameters_are_counted_once_each(family, scheme, gate):
    for share_layers in (False, scheme != "convolution"):
        model = patched(family, scheme, gate=gate, share_layers=share_layers)
        inspection = inspect_model(model)
        assert sum(inspection.parameters.values()) == patch_report(model).added
        schemes = model.config.relpos["schemes"]
        assert len(inspection.parameters) == len(schemes) + 2


def test_heads_that_a_layer_does_not_have_are_no_numbers():
    config = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    inspection = inspected(patched("bart", "clipped", config=config))
    for values in (inspection.learned.gates, inspection.learned.tables["bias"].values[..., 0]):
        assert values.shape == (4, 4)
        assert np.isnan(values).tolist() == [[False, False, True, True]] * 2 + [[False] * 4] * 2
    assert np.isfinite(inspection.learned.tables["bias"].strength).all()
    assert inspection.to_dict()["gates"]["values"][0][2] is None


def test_the_model_reads_without_dropout_and_stays_as_it_is():
    model = patched("t5", "sum", config={"dropout_rate": 0.5})
    expected = inspected(model).attention.moved[WITHOUT_RELATIVE]
    model.train()
    model.encoder.eval()
    weights(model, TEXTS[0])  # Transformers marks what has once recorded attentions
    before = tiny.snapshot(model)
    np.testing.assert_array_equal(inspected(model).attention.moved[WITHOUT_RELATIVE], expected)
    tiny.assert_same(tiny.snapshot(model), before)


def test_so_many_texts_and_tokens_are_read_and_no_more():
    attention = inspected(patched("bert"), samples=1, length=4).attention
    assert (attention.texts, attention.tokens, attention.farthest) == (1, 4, 3)
    long = " ".join(["w1"] * 30)
    assert inspect_model(patched("bert"), [long], tokenizer()).attention.tokens == tiny.POSITIONS
    assert inspect_model(patched("bert", native="drop"), [long], tokenizer()).attention.tokens == 30


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"texts": TEXTS}, TextsError, "needs the model's tokenizer"),
        ({"texts": ["w1", ""], "tokenizer": tokenizer()}, TextsError, "no text of two tokens or more"),
        ({"texts": TEXTS, "tokenizer": tokenizer(), "samples": 0}, TextsError, "`samples` is 0"),
        ({"texts": TEXTS, "tokenizer": tokenizer(), "length": 17}, TextsError, "`length` is 17, .* from 2 to 16"),
        ({"texts": TEXTS, "tokenizer": tokenizer(), "length": 1}, TextsError, "`length` is 1"),
    ],
    ids=["tokenizer", "short", "samples", "long", "length"],
)
def test_what_cannot_be_read_is_told(given, error, said):
    with pytest.raises(error, match=said):
        inspect_model(patched("bert"), **given)


def test_a_model_without_relative_positions_is_told_what_to_do():
    with pytest.raises(PatchStateError, match="BertForMaskedLM is not patched"):
        inspect_model(tiny.build("bert"))


def test_it_prints_gates_and_use_by_layer_and_head_and_is_json():
    model = patched("bert", "shaw")
    inspection = inspected(model)
    text = str(inspection)
    assert repr(inspection) == text
    assert str(patch_report(model)) in text
    gates = model.bert.encoder.layer[1].attention.self.relpos.gate.weight
    assert ["1", *(f"{gate:.3f}" for gate in gates)] in [line.split() for line in text.splitlines()]
    moved = inspection.attention.moved[WITHOUT_RELATIVE]
    assert f"{moved[0, 1]:.3f}" in text.partition("goes elsewhere without the relative terms")[2]
    numbers = json.loads(json.dumps(inspection.to_dict(), allow_nan=False))
    assert numbers["attention"]["moved"][WITHOUT_RELATIVE][0][1] == pytest.approx(moved[0, 1], rel=1e-5)
    assert numbers["relpos"] == model.config.relpos
    assert numbers["parameters"]["in all"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_fresh_patch_says_that_nothing_was_trained():
    fresh = hf_relpos.patch_model(tiny.build("bert"), "shaw")
    assert "No table has been trained yet" in str(inspect_model(fresh))
    for layer in fresh.bert.encoder.layer:
        nn.init.ones_(layer.attention.self.relpos.schemes[0].key_table.weight)
    text = str(inspect_model(fresh))
    assert "No table has been trained yet" not in text
    assert "training has not reached:\n  relative values, layers 0, 1: offsets -16 to 16" in text
