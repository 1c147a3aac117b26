"""The Auto classes, pipelines and tokenizers know patched models, and go on knowing everything else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fresh
import pytest
import tiny
import tokenizers
import torch
import transformers
from tiny import build, choices, fill, patched
from transformers.models.auto import modeling_auto

import hf_relpos
from hf_relpos import patch_model
from hf_relpos.families import FAMILIES

ONE_PER_FAMILY = ("bert", "gpt2", "t5", "mt5", "umt5")


def heads_of(family):
    """Every Auto class with the stock class it has for a family."""
    config_class = type(tiny.config_of(family))
    for auto in vars(modeling_auto).values():
        if isinstance(auto, type) and getattr(auto, "_model_mapping", None) is not None:
            head = auto._model_mapping.get(config_class, None)
            if head is not None:
                yield auto, head


EVERY_HEAD = [
    pytest.param(family, auto, head, id=f"{family}-{auto.__name__}")
    for family in ONE_PER_FAMILY
    for auto, head in heads_of(family)
]


def test_list_of_heads_is_not_empty_for_any_family():
    counts = {family: sum(parameter.values[0] == family for parameter in EVERY_HEAD) for family in ONE_PER_FAMILY}
    assert min(counts.values()) >= 5, counts
    assert counts["bert"] >= 9


def call(model, family):
    """A forward pass of any head."""
    name = type(model).__name__
    ids = tiny.tokens(2, 9)
    batch = {"input_ids": ids}
    if "MultipleChoice" in name:
        batch = {"input_ids": torch.stack([ids, ids.flip(1)], 1)}
    if family in tiny.ENCODER_DECODERS and "Encoder" not in name and "TokenClass" not in name:
        batch["decoder_input_ids"] = ids
    if family in tiny.ENCODER_DECODERS and "SequenceClassification" in name:
        batch["input_ids"] = ids.clone()
        batch["input_ids"][:, -1] = model.config.eos_token_id
        del batch["decoder_input_ids"]
    with torch.no_grad():
        return model.eval()(**batch)[0]


@pytest.mark.core
@pytest.mark.parametrize(("family", "auto", "head"), EVERY_HEAD)
def test_every_head_patches_saves_and_resolves_through_its_auto_class(family, auto, head, tmp_path):
    arguments = {"eos_token_id": 1} if family in tiny.ENCODER_DECODERS else {}
    stock = build(family, cls=head.__name__, **arguments)
    before = call(stock, family)
    model = patch_model(stock, choices("sum", "gate", "head"))
    tiny.assert_close(call(model, family), before)
    fill(model)
    assert tiny.differ(call(model, family), before) > 1e-4
    model.save_pretrained(tmp_path)
    twin = auto.from_pretrained(tmp_path)
    assert type(twin).__name__ == f"RelPos{head.__name__}"
    assert type(twin) is type(model)
    assert torch.equal(call(twin, family), call(model, family))
    assert type(auto.from_config(twin.config)) is type(model)


def test_head_that_no_auto_class_has_is_supported_too(tmp_path):
    model = fill(patch_model(build("gpt2", cls="GPT2DoubleHeadsModel"), choices("sum")))
    model.save_pretrained(tmp_path)
    twin = hf_relpos.RelPosGPT2DoubleHeadsModel.from_pretrained(tmp_path)
    ids = tiny.tokens(2, 2, 7)
    with torch.no_grad():
        assert torch.equal(twin(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.core
@pytest.mark.parametrize("family", ONE_PER_FAMILY)
def test_stock_models_go_on_resolving_to_stock_classes(family, tmp_path):
    stock = build(family)
    stock.save_pretrained(tmp_path)
    for auto, head in heads_of(family):
        assert auto._model_mapping[type(stock.config)] is head
    loaded = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    assert type(loaded) is type(stock)
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is type(stock.config)
    assert loaded.config._attn_implementation == "sdpa"


@pytest.mark.core
def test_registering_again_or_reloading_is_harmless(tmp_path):
    import hf_relpos.modeling.configs
    import hf_relpos.models

    before = {(family, auto.__name__): head for family in ONE_PER_FAMILY for auto, head in heads_of(family)}
    for _ in range(2):
        hf_relpos.modeling.configs.register()
        for family in FAMILIES.values():
            hf_relpos.models.register(family)
        importlib.reload(hf_relpos)
    model = patched("bert", "sum")
    model.save_pretrained(tmp_path)
    twin = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(twin) is type(model)
    assert torch.equal(tiny.logits(twin, tiny.inputs("bert")), tiny.logits(model, tiny.inputs("bert")))
    assert before == {(family, auto.__name__): head for family in ONE_PER_FAMILY for auto, head in heads_of(family)}


def test_package_imported_anew_in_one_process_still_loads(tmp_path):
    """What a notebook with automatic reloading does; in a process of its own, since it leaves two of everything."""
    patched("bert", "sum").save_pretrained(tmp_path)
    code = """
        import sys, torch, transformers
        import hf_relpos, hf_relpos.models
        first = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()
        for name in [name for name in sys.modules if name.split(".")[0] == "hf_relpos"]:
            del sys.modules[name]
        import hf_relpos
        second = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()
        assert type(second).__name__ == type(first).__name__ and hf_relpos.is_patched(second)
        ids = torch.arange(3, 12)[None]
        with torch.no_grad():
            assert torch.equal(first(ids).logits, second(ids).logits)
        third = hf_relpos.patch_model(transformers.BertModel(transformers.BertConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)), "shaw")
        hf_relpos.unpatch_model(third)
    """
    fresh.run(code, str(tmp_path))


# Tokenizers and pipelines

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(tiny.VOCAB - 5))]


def tiny_tokenizer(**arguments):
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", **arguments,
    )  # fmt: skip


@pytest.mark.core
@pytest.mark.parametrize("family", ONE_PER_FAMILY)
def test_auto_tokenizer_works_on_the_saved_folder(family, tmp_path):
    patched(family).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("w3 w7 nothing")["input_ids"] == [8, 12, 1]


@pytest.mark.core
@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # said of itself by the tokenizers of Transformers 5.15
def test_auto_tokenizer_finds_the_familys_own_from_the_vocabulary_alone(tmp_path):
    """A folder without a tokenizer's config, as many old checkpoints are."""
    patched("bert").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__.startswith("BertTokenizer")
    assert loaded("w3 w7")["input_ids"] == [2, 8, 12, 3]
    stock = tmp_path / "stock"
    build("bert").save_pretrained(stock)
    (stock / "vocab.txt").write_text("\n".join(WORDS))
    assert type(transformers.AutoTokenizer.from_pretrained(stock)) is type(loaded)


def saved(family, folder, cls=None, **config):
    model = patched(family, "sum", "gate", "head", cls=cls, config=config)
    model.save_pretrained(folder)
    tiny_tokenizer(model_max_length=tiny.POSITIONS).save_pretrained(folder)
    return model


def words_to_ids(text):
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_pipeline_for_text_classification(family, tmp_path):
    cls = {"bert": "BertForSequenceClassification", "gpt2": "GPT2ForSequenceClassification"}
    cls = cls.get(family, "T5ForSequenceClassification")
    more = {"eos_token_id": 3} if family == "t5" else {}
    model = saved(family, tmp_path, cls=cls, **more)
    text = "w1 w2 w3 [SEP]"
    out = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")(text, top_k=None)
    logits = model(words_to_ids(text))[0].detach()
    expected = torch.softmax(logits, -1)[0]
    assert {entry["label"] for entry in out} == {"LABEL_0", "LABEL_1"}
    for entry in out:
        assert entry["score"] == pytest.approx(expected[int(entry["label"][-1])].item(), abs=1e-5)


@pytest.mark.core
def test_pipeline_for_fill_mask(tmp_path):
    model = saved("bert", tmp_path)
    text = "w1 w2 [MASK] w4"
    out = transformers.pipeline("fill-mask", model=str(tmp_path), device="cpu")(text)
    expected = torch.softmax(model(words_to_ids(text)).logits[0, 2].detach(), -1)
    assert out[0]["token"] == expected.argmax().item()
    assert out[0]["score"] == pytest.approx(expected.max().item(), abs=1e-5)


@pytest.mark.core
@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_pipeline_for_text_generation(family, tmp_path):
    model = saved(family, tmp_path)
    text = "w1 w2 w3"
    pipe = transformers.pipeline("text-generation", model=str(tmp_path), device="cpu")
    (out,) = pipe(text, max_new_tokens=5, do_sample=False, return_tensors=True)
    ids = words_to_ids(text)
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    assert out["generated_token_ids"] == expected[0].tolist()


def test_pipeline_for_features_and_tokens(tmp_path):
    model = saved("bert", tmp_path)
    text = "w1 w2 w3"
    features = transformers.pipeline("feature-extraction", model=str(tmp_path), device="cpu")(text, return_tensors=True)
    expected = model.bert(words_to_ids(text))[0].detach()
    tiny.assert_close(features, expected)
    saved("bert", tmp_path, cls="BertForTokenClassification")
    out = transformers.pipeline("token-classification", model=str(tmp_path), device="cpu")(text)
    assert len(out) == 3


# A patched model inside a user's own


PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"


@pytest.mark.skipif(not PAGE.exists(), reason="needs the repository")
def test_patched_model_inside_a_users_own_does_what_its_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stock = build("bert", cls="BertModel")
    stock.save_pretrained("bert-base-uncased")
    section = PAGE.read_text(encoding="utf-8").split("## A patched model inside")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    names = {"__name__": __name__, "torch": torch}
    for block in blocks:
        exec(block, names)
    ids, tagger, encoder = tiny.tokens(2, 9), names["tagger"].eval(), names["encoder"].eval()
    assert type(tagger.config) is hf_relpos.RelPosBertConfig
    assert tagger.config.num_labels == 5
    with torch.no_grad():
        for inner in (tagger.bert, encoder.bert):  # fresh patches, saved and loaded
            assert type(inner) is hf_relpos.RelPosBertModel
            tiny.assert_close(inner(ids)[0], stock(ids)[0])
        # And what is learned comes back.
        expected = fill(tagger)(ids)
        tagger.save_pretrained("my-tagger")
        assert torch.equal(type(tagger).from_pretrained("my-tagger").eval()(ids), expected)
        torch.save(fill(encoder).state_dict(), "encoder.pt")
        twin = type(encoder)().eval()
        twin.load_state_dict(torch.load("encoder.pt"))
        assert torch.equal(twin.bert(ids)[0], encoder.bert(ids)[0])
        assert tiny.differ(twin.bert(ids)[0], stock(ids)[0]) > 1e-3


def test_public_names_are_listed_and_misspelt_ones_are_not_there():
    assert {"patch_model", "RelPosConfig", "RelPosBertForMaskedLM", "RelPosT5Model"} <= set(dir(hf_relpos))
    assert hf_relpos.RelPosT5Config.model_type == "relpos-t5"
    for name in hf_relpos.__all__:
        assert getattr(hf_relpos, name) is not None
    assert not hasattr(hf_relpos, "patch")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RelPosBertForNothing", ("RelPosBertForMaskedLM", "RelPosBertModel", "RelPosBertConfig")),
        ("RelPosT5Configuration", ("RelPosT5ForConditionalGeneration", "RelPosT5Config")),
        ("RelPosGranite", ("RelPosBert...", "RelPosUMT5...", "supported families")),
    ],
)
def test_a_class_that_there_is_not_is_told_which_there_are(name, words):
    with pytest.raises(AttributeError, match=f"hf_relpos has no '{name}'") as refusal:
        getattr(hf_relpos, name)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_patched_class_is_importable_by_its_own_name(family):
    model = patched(family)
    for module in model.modules():
        cls = type(module)
        if cls.__module__.startswith("hf_relpos") and not cls.__name__.endswith("PositionalEmbedding"):
            assert getattr(importlib.import_module(cls.__module__), cls.__qualname__) is cls
