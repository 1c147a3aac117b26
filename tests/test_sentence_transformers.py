"""A patched model inside a SentenceTransformer: patched in place, encoded with, trained, saved, loaded."""

from __future__ import annotations

import json

import datasets
import pytest
import tiny
import torch
import transformers
from test_pipelines import tokenizer
from tiny import build, choices, fill

from hf_relpos import PatchStateError, UnsupportedModelError, is_patched, patch_model, unpatch_model

st = pytest.importorskip("sentence_transformers")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "w9 w3", "w7 w1 w30 w2 w2"]


def sentence_model(folder, family="bert"):
    """A SentenceTransformer around a stock model: mean of the last states, as users make it from a checkpoint."""
    cls = {"bert": "BertModel", "t5": "T5EncoderModel"}[family]
    build(family, cls=cls).save_pretrained(folder)
    tokenizer(model_max_length=tiny.POSITIONS).save_pretrained(folder)
    return st.SentenceTransformer(str(folder), device="cpu")


def inner(sentences):
    """The Transformers model inside."""
    return sentences[0].auto_model


def patched_inside(folder, family="bert", **choice):
    sentences = sentence_model(folder, family)
    choice = {"scheme": "sum", "native": "gate", "gate": "token", **choice}
    fill(patch_model(inner(sentences), choices(**choice)))
    return sentences


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_patching_in_place_changes_the_embeddings_and_unpatching_restores_them(family, tmp_path):
    sentences = sentence_model(tmp_path, family)
    before = sentences.encode(TEXTS, convert_to_tensor=True)
    patch_model(inner(sentences), choices("sum"))
    assert is_patched(sentences)
    tiny.assert_close(sentences.encode(TEXTS, convert_to_tensor=True), before)
    fill(sentences)
    assert tiny.differ(sentences.encode(TEXTS, convert_to_tensor=True), before) > 0.05
    unpatch_model(inner(sentences))
    assert torch.equal(sentences.encode(TEXTS, convert_to_tensor=True), before)


@pytest.mark.core
def test_embedding_of_a_padded_batch_is_that_of_each_text_and_the_mean_of_its_states(tmp_path):
    sentences = patched_inside(tmp_path)
    together = sentences.encode(TEXTS, convert_to_tensor=True)
    for row, text in enumerate(TEXTS):
        ids = torch.tensor([tokenizer()(text)["input_ids"]])
        with torch.no_grad():
            states = inner(sentences)(ids).last_hidden_state
        tiny.assert_close(together[row], states[0].mean(0))
        tiny.assert_close(sentences.encode([text], convert_to_tensor=True)[0], states[0].mean(0))


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
def test_saved_and_loaded_it_gives_the_same_embeddings_bit_for_bit(native, tmp_path):
    sentences = patched_inside(tmp_path / "stock", native=native)
    expected = sentences.encode(TEXTS, convert_to_tensor=True)
    sentences.save_pretrained(str(tmp_path / "saved"))
    config = next((tmp_path / "saved").rglob("config.json"))
    assert json.loads(config.read_text())["model_type"] == "relpos-bert"
    loaded = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert type(inner(loaded)) is type(inner(sentences))
    assert torch.equal(loaded.encode(TEXTS, convert_to_tensor=True), expected)


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
def test_t5_that_sentence_transformers_loads_as_a_stock_class_is_refused_and_can_be_put_right(native, tmp_path):
    """It names T5's encoder class itself and asks no Auto class; the relative positions would be lost."""
    sentences, folder = patched_inside(tmp_path / "stock", "t5", native=native), str(tmp_path / "saved")
    expected = sentences.encode(TEXTS, convert_to_tensor=True)
    sentences.save_pretrained(folder)
    loaded = st.SentenceTransformer(folder, device="cpu")
    with pytest.raises(PatchStateError, match="has no relative positions: its model was built by a class"):
        loaded.encode(TEXTS)
    loaded[0].model = transformers.AutoModelForTextEncoding.from_pretrained(folder)
    assert type(inner(loaded)) is type(inner(sentences))
    assert torch.equal(loaded.encode(TEXTS, convert_to_tensor=True), expected)


def test_dropped_positions_take_texts_longer_than_the_model_was_pretrained_for(tmp_path):
    sentences = patched_inside(tmp_path, native="drop")
    sentences.max_seq_length = 4 * tiny.POSITIONS
    text = " ".join(["w1 w2 w3 w4"] * tiny.POSITIONS)
    other = text + " w9"
    made = sentences.encode([text, text.replace("w1", "w5", 1)], convert_to_tensor=True)
    assert tiny.differ(made[0], made[1]) > 1e-4
    tiny.assert_close(sentences.encode([other], convert_to_tensor=True)[0], made[0])  # cut at the new length


def test_fine_tuning_moves_every_table_and_what_it_saves_loads_exactly(tmp_path):
    sentences = sentence_model(tmp_path / "stock")
    patch_model(inner(sentences), choices("sum"))
    before = {name: parameter.detach().clone() for name, parameter in tiny.added(sentences).items()}
    pairs = datasets.Dataset.from_dict(
        {"anchor": [f"w{i} w{i + 1} w{i + 2}" for i in range(8)], "positive": [f"w{i + 2} w{i}" for i in range(8)]}
    )
    trainer = st.SentenceTransformerTrainer(
        sentences,
        st.SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "run"), per_device_train_batch_size=4, max_steps=4, learning_rate=0.05,
            use_cpu=True, report_to=[], save_strategy="steps", save_steps=4, disable_tqdm=True, logging_steps=1,
        ),
        train_dataset=pairs,
        loss=losses.MultipleNegativesRankingLoss(sentences),
    )  # fmt: skip
    trainer.train()
    for name, parameter in tiny.added(sentences).items():
        assert not torch.equal(parameter, before[name]), name
    expected = sentences.eval().encode(TEXTS, convert_to_tensor=True)
    for folder in (tmp_path / "run" / "checkpoint-4", tmp_path / "end"):
        if folder.name == "end":
            sentences.save_pretrained(str(folder))
        loaded = st.SentenceTransformer(str(folder), device="cpu")
        assert torch.equal(loaded.encode(TEXTS, convert_to_tensor=True), expected)
    assert tiny.differ(expected, sentence_model(tmp_path / "again").encode(TEXTS, convert_to_tensor=True)) > 1e-3


def test_the_whole_is_refused_with_a_word_on_where_the_model_is(tmp_path):
    sentences = sentence_model(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"was given SentenceTransformer.* call this on.*: model\[0\]\."):
        patch_model(sentences, "shaw")
