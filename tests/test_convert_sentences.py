"""Converting the model inside a SentenceTransformer: a sentence model comes back, which reads longer."""

from __future__ import annotations

import pytest
import tiny
import torch
from test_convert import SCHEMES, SETTINGS, converted, taken, texts
from test_pipelines import tokenizer

from hf_relpos import ConversionError, convert, is_patched
from hf_relpos.compat.sentence_transformers import inner_model
from hf_relpos.conversion import Matching

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")


def sentence_model(folder, mode="mean"):
    """A stock BERT with pooling and a normalisation, as a folder that users load."""
    tiny.build("bert", cls="BertModel").save_pretrained(folder / "stock")
    tokenizer(model_max_length=tiny.POSITIONS).save_pretrained(folder / "stock")
    first = st.SentenceTransformer(str(folder / "stock"), device="cpu")[0]
    pooling = modules.Pooling(tiny.HIDDEN, pooling_mode=mode)
    return st.SentenceTransformer(modules=[first, pooling, modules.Normalize()], device="cpu")


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_a_sentence_model_comes_back_that_embeds_alike_and_longer(mode, tmp_path):
    model = sentence_model(tmp_path, mode)
    before = taken(inner_model(model))
    settings = {**SETTINGS, "start": "zeros", "steps": (10, 30), "matching": Matching(embedding=1)}
    result = convert(model, SCHEMES, texts(), **settings)
    tiny.assert_same(taken(inner_model(model)), before)
    assert type(result) is type(model)
    assert is_patched(result)
    assert not is_patched(model)
    assert (result.max_seq_length, result.tokenizer.model_max_length) == (32, 32)
    assert (model.max_seq_length, model.tokenizer.model_max_length) == (tiny.POSITIONS, tiny.POSITIONS)

    some = [" ".join(text.split()[:10]) for text in texts(20, seed=5)]
    theirs, mine = (one.encode(some, convert_to_tensor=True) for one in (model, result))
    start = convert(model, SCHEMES, texts(), **{**settings, "steps": (0, 0)})
    unlike = start.encode(some, convert_to_tensor=True)
    far, near = (1 - torch.nn.functional.cosine_similarity(one, theirs).mean() for one in (unlike, mine))
    assert near < 0.8 * far


def test_it_is_saved_and_loaded_as_what_it_is(tmp_path):
    result = convert(sentence_model(tmp_path), SCHEMES, texts(), **{**SETTINGS, "steps": (1, 1)})
    result.save_pretrained(str(tmp_path / "converted"))
    loaded = st.SentenceTransformer(str(tmp_path / "converted"), device="cpu")
    long = [" ".join(texts(20))]
    expected = result.encode(long, convert_to_tensor=True)
    assert torch.equal(loaded.encode(long, convert_to_tensor=True), expected)
    assert not torch.equal(loaded.encode([" ".join(long[0].split()[:20])], convert_to_tensor=True), expected)


def test_a_sentence_model_without_a_model_of_transformers_is_refused():
    bow = modules.BoW(vocab=["a", "b"])
    with pytest.raises(ConversionError, match="starts with a BoW, in which there is no model of Transformers"):
        converted(st.SentenceTransformer(modules=[bow], device="cpu"))
