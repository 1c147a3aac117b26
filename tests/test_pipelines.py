"""Pipelines on patched models, many texts at a time; and the heads whose pipelines Transformers 5 no longer has.

One text at a time, from a saved folder, is in test_registration.py.
"""

from __future__ import annotations

import pytest
import tiny
import tokenizers
import torch
import transformers
from tiny import patched
from transformers import PreTrainedTokenizerFast, pipeline

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *(f"w{i}" for i in range(tiny.VOCAB - len(SPECIAL)))]
TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8 [SEP]", "w9 w3 [SEP]", "w7 w1 w30 w2 w2 [SEP]"]
# (family, class of the head, config it needs): T5 classifies at the separator, GPT-2 at the last token.
CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", {}),
    "gpt2": ("GPT2ForSequenceClassification", {}),
    "t5": ("T5ForSequenceClassification", {"eos_token_id": 3}),
}
TAGGERS = {
    "bert": "BertForTokenClassification",
    "gpt2": "GPT2ForTokenClassification",
    "t5": "T5ForTokenClassification",
}
READERS = {"bert": "BertForQuestionAnswering", "gpt2": "GPT2ForQuestionAnswering", "t5": "T5ForQuestionAnswering"}


def tokenizer(**arguments):
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=core, **dict(zip(names, SPECIAL, strict=True)), **arguments)


def saved(folder, family, cls=None, native="gate", config=None, **arguments):
    """A patched model and a tokenizer in one folder; returns the model."""
    model = patched(family, "sum", native, "token", cls=cls, config=config)
    model.save_pretrained(folder)
    tokenizer(**arguments).save_pretrained(folder)
    return model


def ids(text):
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def many(folder, task, **arguments):
    return pipeline(task, model=str(folder), device="cpu", batch_size=len(TEXTS), **arguments)(TEXTS)


@pytest.mark.core
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_text_classification_of_a_padded_batch_is_that_of_each_text(family, tmp_path):
    cls, config = CLASSIFIERS[family]
    model = saved(tmp_path, family, cls, config=config)
    for text, found in zip(TEXTS, many(tmp_path, "text-classification", top_k=None), strict=True):
        expected = torch.softmax(model(ids(text))[0].detach()[0], -1)
        scores = {entry["label"]: entry["score"] for entry in found}
        assert scores == pytest.approx({f"LABEL_{i}": expected[i].item() for i in (0, 1)}, abs=1e-5)


@pytest.mark.parametrize("family", TAGGERS)
def test_token_classification_of_a_padded_batch_is_that_of_each_text(family, tmp_path):
    model = saved(tmp_path, family, TAGGERS[family])
    for text, found in zip(TEXTS, many(tmp_path, "token-classification", ignore_labels=[]), strict=True):
        expected = torch.softmax(model(ids(text))[0].detach()[0], -1)
        assert [entry["word"] for entry in found] == text.split()
        for index, entry in enumerate(found):
            assert entry["entity"] == f"LABEL_{expected[index].argmax()}"
            assert entry["score"] == pytest.approx(expected[index].max().item(), abs=1e-5)


def test_fill_mask_in_a_padded_batch_is_that_of_each_text(tmp_path):
    model = saved(tmp_path, "bert")
    texts = ["w1 [MASK] w3 w4 w5 w6 w7", "w9 [MASK] w2"]
    made = pipeline("fill-mask", model=str(tmp_path), device="cpu", batch_size=2)(texts)
    for text, found in zip(texts, made, strict=True):
        expected = torch.softmax(model(ids(text)).logits[0, 1].detach(), -1)
        assert found[0]["token"] == expected.argmax().item()
        assert found[0]["score"] == pytest.approx(expected.max().item(), abs=1e-5)


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
def test_text_generation_from_a_padded_batch_is_that_of_each_text(native, tmp_path):
    model = saved(tmp_path, "gpt2", native=native, padding_side="left")
    for text, (found,) in zip(
        TEXTS, many(tmp_path, "text-generation", max_new_tokens=6, do_sample=False, return_tensors=True), strict=True
    ):
        expected = model.generate(
            ids(text), attention_mask=torch.ones_like(ids(text)), max_new_tokens=6, do_sample=False
        )
        assert found["generated_token_ids"][-len(expected[0]) :] == expected[0].tolist()


def test_features_of_a_text_longer_than_the_model_was_pretrained_for(tmp_path):
    model = saved(tmp_path, "bert", native="drop")
    text = " ".join(WORDS[5 : 5 + 2 * tiny.POSITIONS])
    features = pipeline("feature-extraction", model=str(tmp_path), device="cpu")(text, return_tensors=True)
    assert features.shape[1] == 2 * tiny.POSITIONS
    tiny.assert_close(features, model.bert(ids(text))[0].detach())


def test_zero_shot_classification_through_an_entailment_head(tmp_path):
    labels = {"id2label": {0: "contradiction", 1: "entailment"}, "label2id": {"contradiction": 0, "entailment": 1}}
    model = saved(tmp_path, "bert", "BertForSequenceClassification", native="drop")
    model.config.id2label, model.config.label2id = labels["id2label"], labels["label2id"]
    model.save_pretrained(tmp_path)
    made = pipeline("zero-shot-classification", model=str(tmp_path), device="cpu")(
        "w1 w2 w3", candidate_labels=["w8", "w9"], hypothesis_template="w4 {}"
    )
    entailed = torch.stack([model(ids(f"w1 w2 w3 w4 {label}")).logits[0, 1].detach() for label in ("w8", "w9")])
    scores = dict(zip(made["labels"], made["scores"], strict=True))
    expected = torch.softmax(entailed, 0)
    assert scores == pytest.approx({"w8": expected[0].item(), "w9": expected[1].item()}, abs=1e-5)


# Transformers 5 has no pipelines for these heads: their models are called directly.


@pytest.mark.parametrize("task", ["question-answering", "summarization", "text2text-generation"])
def test_pipelines_that_are_gone_from_transformers_are_still_gone(task):
    """When one comes back, test it here instead of what follows."""
    with pytest.raises(KeyError, match=task):
        pipeline(task, model=patched("t5"), tokenizer=tokenizer())


@pytest.mark.parametrize("family", READERS)
def test_question_answering_head_reads_padded_pairs_as_it_reads_each(family, tmp_path):
    model = saved(tmp_path, family, READERS[family])
    loaded = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False
    )
    with torch.no_grad():
        together = loaded(**batch)
        for row, text in enumerate(TEXTS):
            alone = model(ids(text))
            length = ids(text).shape[1]
            tiny.assert_close(together.start_logits[row, :length], alone.start_logits[0])
            tiny.assert_close(together.end_logits[row, :length], alone.end_logits[0])


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.ENCODER_DECODERS)
def test_summaries_of_a_padded_batch_are_those_of_each_text(family, tmp_path):
    model = saved(tmp_path, family)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = words(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    made = words.batch_decode(loaded.generate(**batch, max_new_tokens=6, num_beams=2, do_sample=False))
    for text, summary in zip(TEXTS, made, strict=True):
        alone = model.generate(ids(text), max_new_tokens=6, num_beams=2, do_sample=False)
        assert summary == words.decode(alone[0])
