"""Families: specs are compared with the models they are about, and open to those of other packages."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import textwrap
import types
from typing import Any

import fresh
import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import T5_LIKES, assert_close, assert_same, build, fill
from torch import nn

import hf_relpos
from hf_relpos import (
    FamilyError,
    NothingPatchedError,
    PatchStateError,
    RelPosConfig,
    RelPosConfigError,
    UnsupportedModelError,
    patch_model,
    patch_report,
    register_family,
    save_standalone,
    unpatch_model,
)
from hf_relpos.families import BUILT_IN, FAMILIES, AbsoluteEmbedding, Family, RotaryPositions, ScoreBias
from hf_relpos.families.bart import BART
from hf_relpos.families.bert import BERT

LLAMA = Family(
    package="llama",
    config="LlamaConfig",
    attention="LlamaAttention",
    num_heads="config.num_attention_heads",
    head_dim=lambda attention: attention.q_proj.out_features // attention.config.num_attention_heads,
    causal="is_causal",
    natives=(RotaryPositions(),),
)


@pytest.fixture
def register():
    """``register_family`` for a spec of the test's own, undone after it: classes are made once for each spec."""
    before = dict(FAMILIES)
    yield lambda family: register_family(dataclasses.replace(family))
    FAMILIES.clear()
    FAMILIES.update(before)


def llama(dtype: torch.dtype = torch.float64, cls: str = "LlamaForCausalLM") -> Any:
    """Six query heads share two key heads."""
    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return tiny.randomise(getattr(transformers, cls)(config).to(dtype).eval())


# What is imported


@pytest.mark.core
def test_modelling_code_is_imported_for_the_family_that_is_asked_for_and_no_other(tmp_path):
    model = tiny.patched("bert")
    model.save_pretrained(tmp_path / "folder")
    (tmp_path / "pickle").write_bytes(pickle.dumps(model))
    head = """
        import sys

        def families():
            return {name.split(".")[2] for name in sys.modules if name.startswith("transformers.models.")
                    and ".modeling_" in name and name.split(".")[2] != "auto"}

        import hf_relpos
        assert families() == set(), families()
        assert "RelPosBertModel" in dir(hf_relpos) and "RelPosBartModel" in dir(hf_relpos)
        assert "RelPosBertConfig" in dir(hf_relpos) and "register_family" in dir(hf_relpos)
        assert families() == set(), families()
    """
    for code in (
        "hf_relpos.patch_model(transformers.BertModel(transformers.BertConfig(**dict(hidden_size=8,"
        " num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))), 'shaw')",
        "transformers.AutoModel.from_pretrained(sys.argv[1] + '/folder')",
        "hf_relpos.RelPosBertForMaskedLM.from_pretrained(sys.argv[1] + '/folder')",
        "import pickle; pickle.load(open(sys.argv[1] + '/pickle', 'rb'))",
    ):
        fresh.run(
            textwrap.dedent(head) + f"\nimport transformers\n{code}\nassert families() == {{'bert'}}, families()\n",
            str(tmp_path),
        )


def test_configs_are_made_for_the_family_that_is_asked_for_and_no_other():
    fresh.run("""
        import sys, hf_relpos

        def others():
            return [name for name in sys.modules if name.endswith((".configuration_gpt2", ".configuration_bart"))]

        assert not others(), others()
        from transformers import AutoConfig
        assert type(AutoConfig.for_model("relpos-bert", relpos="shaw")) is hf_relpos.RelPosBertConfig
        assert not others(), others()
        assert type(AutoConfig.for_model("relpos-gpt2", relpos="shaw")) is hf_relpos.RelPosGPT2Config
    """)


# What a spec says is compared with what is there


@pytest.mark.core
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "BertSelfAtention"}, ("attention", "BertSelfAtention", "modeling_bert", "BertSelfAttention")),
        ({"overrides": {"BertEmbedding": object}}, ("overrides", "BertEmbedding", "BertEmbeddings")),
        ({"natives": (AbsoluteEmbedding("BertEmbed", "wpe"),)}, ("natives", "BertEmbed", "BertEmbeddings")),
        ({"module": "transformers.models.bert.modelling"}, ("transformers.models.bert.modelling", "`module`")),
    ],
)
def test_class_that_is_not_there_is_named_with_the_place_and_what_is_there(change, words):
    family = dataclasses.replace(BERT, **change)
    with pytest.raises(FamilyError) as caught:
        family.modeling  # noqa: B018
    for word in ("'bert'", *words):
        assert word in str(caught.value)


@pytest.mark.core
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_heads": "num_heads"}, ("`num_heads`", "LlamaAttention", "config", "head_dim")),
        ({"num_heads": "config.n_head"}, ("'config.n_head'", "LlamaConfig", "'n_head'", "num_attention_heads")),
        ({"head_dim": "is_causal"}, ("`head_dim`", "True", "whole number")),
        ({"head_dim": lambda attention: 0}, ("`head_dim`", "is 0", "whole number")),
        ({"causal": "causal"}, ("`causal`", "LlamaAttention", "'causal'")),
        ({"num_heads": lambda attention: attention.heads}, ("`num_heads`", "LlamaAttention", "'heads'")),
    ],
)
def test_attribute_that_is_not_there_is_named_with_what_is_there_and_nothing_is_patched(register, change, words):
    register(dataclasses.replace(LLAMA, **change))
    model = llama()
    before = tiny.snapshot(model)
    with pytest.raises(FamilyError) as caught:
        patch_model(model, RelPosConfig("t5", native="keep"))
    for word in ("'llama'", *words):
        assert word in str(caught.value)
    assert_same(before, tiny.snapshot(model))


@pytest.mark.core
@pytest.mark.parametrize("native", ["gate", "drop"])
@pytest.mark.parametrize(
    ("natives", "words"),
    [
        ((), ("without positions",)),
        ((RotaryPositions(),), ("a rotation of queries and keys", "only be kept")),
        ((AbsoluteEmbedding("LlamaModel", "wpe"),), ("LlamaModel.wpe", "LlamaModel has embed_tokens, layers, norm")),
        ((ScoreBias("LlamaAttention", "bias", "has_bias"),), ("LlamaAttention.bias", "q_proj, k_proj")),
    ],
)
def test_native_change_that_would_change_nothing_is_refused_before_the_first_change(register, native, natives, words):
    register(dataclasses.replace(LLAMA, natives=natives))
    model = llama()
    before = tiny.snapshot(model)
    with pytest.raises(NothingPatchedError) as caught:
        patch_model(model, RelPosConfig("t5", native=native))
    for word in ("LlamaForCausalLM", f"native='{native}'", 'native="keep"', *words):
        assert word in str(caught.value)
    assert_same(before, tiny.snapshot(model))
    assert patch_report(patch_model(model, RelPosConfig("t5", native="keep"))).num_layers == 2


@pytest.mark.parametrize("native", ["gate", "drop"])
def test_table_that_somebody_has_replaced_by_something_else_is_named(native):
    class Waves(nn.Module):
        def forward(self, ids):
            return torch.zeros(())

    model = build("bert")
    model.bert.embeddings.position_embeddings = Waves()
    before = tiny.snapshot(model)
    with pytest.raises(NothingPatchedError, match=r"Waves at 'bert\.embeddings\.position_embeddings'"):
        patch_model(model, RelPosConfig("shaw", native=native))
    assert_same(before, tiny.snapshot(model))
    patch_model(model, RelPosConfig("shaw", native="keep"))


@pytest.mark.parametrize("native", ["gate", "drop"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first": "off"}, ("`first`", "'off'", "no attribute")),
        ({"first": lambda table: table.off}, ("`first`", "no attribute 'off'")),
        ({"first": 64}, ("`first`", "64", "0 to 17")),
        ({"first": True}, ("`first`", "True")),
        ({"length": "positions"}, ("`length`", "'positions'", "OPTConfig")),
        ({"length": "activation_function"}, ("`length`", "'relu'", "whole number")),
    ],
)
def test_what_a_spec_says_of_a_table_is_compared_with_it_before_the_first_change(register, native, change, words):
    table = AbsoluteEmbedding("OPTDecoder", "embed_positions", first="offset")
    register(
        Family(
            package="opt",
            config="OPTConfig",
            attention="OPTAttention",
            num_heads="num_heads",
            head_dim="head_dim",
            causal="is_causal",
            natives=(dataclasses.replace(table, **change),),
        )
    )
    sizes = {"hidden_size": 8, "word_embed_proj_dim": 8, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.OPTModel(transformers.OPTConfig(**sizes, vocab_size=9, max_position_embeddings=16))
    before = tiny.snapshot(model)
    with pytest.raises(FamilyError) as caught:
        patch_model(model, RelPosConfig("shaw", native=native))
    for word in ("OPTDecoder.embed_positions", *words):
        assert word in str(caught.value)
    assert_same(before, tiny.snapshot(model))


@pytest.mark.parametrize("native", ["gate", "drop"])
def test_flag_that_is_not_there_is_named_with_what_is(register, native):
    register(dataclasses.replace(LLAMA, natives=(ScoreBias("LlamaAttention", "q_proj", "has_bias"),)))
    model = llama()
    model.model.layers[0].self_attn.q_proj = nn.Embedding(2, 2)
    with pytest.raises(FamilyError, match=r"LlamaAttention\.q_proj.*'has_bias' for their `flag`.*layer_idx"):
        patch_model(model, RelPosConfig("t5", native=native))


# What is registered


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"package": "bert"}, ("'bert'", "another spec", "same name")),
        ({"module": BERT.modeling_name}, ("'bert'", "same modeling module", "modeling_bert")),
        ({"config": transformers.BertConfig}, ("'bert'", "same config", "'BertConfig'")),
        ({"config": "LlamaConfig2"}, ("'LlamaConfig2'", "configuration_llama", "LlamaConfig")),
        ({"package": "llamma"}, ("'llamma'", "`config`", "`module`")),
        ({"package": "llama3", "config": transformers.LlamaConfig}, ("'llama3'", "'llama'", "model_type")),
        ({"package": "mine", "config": transformers.PreTrainedConfig}, ("'mine'", "model_type is ''")),
        ({"config": dict}, ("`config`", "config class")),
        ({"num_heads": 3}, ("`num_heads`", "3", "path of attributes")),
        ({"natives": ("wpe",)}, ("`natives`", "wpe")),
        ({"natives": RotaryPositions()}, ("`natives`", "a tuple")),
        ({"overrides": ["LlamaModel"]}, ("`overrides`", "LlamaModel")),
        ({"overrides": {"LlamaModel": "Mixin"}}, ("`overrides`", "Mixin")),
        ({"package": ""}, ("`package`",)),
    ],
)
def test_family_that_does_not_fit_is_refused_and_not_there(change, words):
    before = dict(FAMILIES)
    with pytest.raises(FamilyError) as caught:
        register_family(dataclasses.replace(LLAMA, **change))
    for word in words:
        assert word in str(caught.value)
    assert before == FAMILIES


def test_what_is_no_family_is_refused():
    with pytest.raises(FamilyError, match="takes a Family"):
        register_family("llama")


def test_registering_the_same_spec_again_is_harmless(register):
    first = register(LLAMA)
    # As its module makes it when it is loaded again: equal, with functions of its own.
    again = dataclasses.replace(LLAMA, head_dim=types.FunctionType(LLAMA.head_dim.__code__, globals(), "<lambda>"))
    again.head_dim.__qualname__ = LLAMA.head_dim.__qualname__
    assert again.head_dim is not LLAMA.head_dim
    assert register(again) is first
    assert FAMILIES["llama"] is first
    with pytest.raises(FamilyError, match="another spec"):
        register(dataclasses.replace(LLAMA, head_dim=lambda attention: 4))


@pytest.mark.core
def test_family_registered_late_is_known_everywhere(register, tmp_path):
    import peft

    with pytest.raises(UnsupportedModelError) as caught:
        patch_model(llama(), "t5")
    assert "Llama" not in str(caught.value).partition("families")[2]
    register(LLAMA)
    with pytest.raises(UnsupportedModelError, match=r"families.*Llama"):
        patch_model(nn.Linear(2, 2), "t5")
    assert "RelPosLlamaForCausalLM" in dir(hf_relpos)
    model = fill(patch_model(llama(torch.float32), RelPosConfig("t5", native="keep")))
    assert type(model) is hf_relpos.RelPosLlamaForCausalLM
    assert type(model.config) is hf_relpos.RelPosLlamaConfig
    assert peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig()).get_nb_trainable_parameters()[0] > 0
    model.save_pretrained(tmp_path)
    twin = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = {"input_ids": tiny.tokens(2, 9)}
    assert torch.equal(tiny.logits(twin, ids), tiny.logits(model, ids))
    with pytest.raises(PatchStateError, match=r"'llama'.*another package"):
        save_standalone(model, tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


def test_no_two_families_have_a_class_of_one_name():
    made: dict[str, type] = {}
    for family in BUILT_IN:
        for value in list(vars(family.modeling).values()):
            ours = hf_relpos.models.patched_class(value) if isinstance(value, type) else None
            if ours is not None:
                assert made.setdefault(ours.__name__, ours) is ours
                assert ours.__name__.startswith(f"RelPos{family.prefix}")
                assert getattr(hf_relpos.models, ours.__name__) is ours
    assert made["RelPosDistilBertEmbeddings"].relpos_original.__name__ == "Embeddings"


# A family whose positions are a rotation, whose attention has no number of heads, and whose heads share keys


@pytest.mark.core
@pytest.mark.parametrize("scheme", ["t5", "clipped", "alibi"])
def test_bias_on_top_of_a_rotation_is_exact_and_generates(register, scheme):
    register(LLAMA)
    stock, ids = llama(), tiny.tokens(2, 12)
    before, expected = tiny.snapshot(stock), tiny.logits(stock, {"input_ids": ids})
    model = patch_model(stock, RelPosConfig(scheme, native="keep"))
    if scheme != "alibi":
        assert_close(tiny.logits(model, {"input_ids": ids}), expected)
    assert "kept: a rotation of queries and keys" in str(patch_report(model))
    fill(model)
    full = tiny.logits(model, {"input_ids": ids})
    assert tiny.differ(full, expected) > 0.05
    cache, parts = None, []
    for start, size in ((0, 5), (5, 1), (6, 6)):
        with torch.no_grad():
            out = model(input_ids=ids[:, start : start + size], use_cache=True, **tiny.caching(model, cache))
        cache = tiny.cache_of(out)
        parts.append(out.logits)
    assert_close(torch.cat(parts, 1), full)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    assert torch.equal(tiny.logits(model, {"input_ids": made})[:, 11:-1].argmax(-1), made[:, 12:])
    assert_same(before, tiny.snapshot(unpatch_model(model)))


def test_a_rotated_models_bias_is_the_one_that_a_look_up_pair_by_pair_adds(register):
    register(LLAMA)
    ids = tiny.tokens(2, 12)
    model = fill(patch_model(llama(), RelPosConfig("clipped", native="keep", gate="none")))
    stock = llama()
    offsets = (torch.arange(12)[None] - torch.arange(12)[:, None]).clamp(-128, 128) + 128
    hidden = torch.full((12, 12), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    for ours, theirs in zip(model.model.layers, stock.model.layers, strict=True):
        table = ours.self_attn.relpos.schemes[0].bias_table.weight.detach()
        theirs.self_attn.register_forward_pre_hook(
            lambda _, args, given, bias=table[None, :, offsets] + hidden: (args, {**given, "attention_mask": bias}),
            with_kwargs=True,
        )
    assert_close(tiny.logits(model, {"input_ids": ids}), tiny.logits(stock, {"input_ids": ids}))


@pytest.mark.parametrize(
    ("relpos", "words"),
    [
        (RelPosConfig("rotary", native="keep"), ("'rotary'", "rotate")),
        (RelPosConfig("shaw", native="keep"), ("'shaw'", "multiply")),
        (RelPosConfig("t5", native="keep", gate="token"), ("'token'", "'head'")),
    ],
)
def test_what_would_act_on_rotated_queries_is_refused(register, relpos, words):
    register(LLAMA)
    model = llama()
    before = tiny.snapshot(model)
    with pytest.raises(RelPosConfigError) as caught:
        patch_model(model, relpos)
    for word in ("LlamaForCausalLM", *words):
        assert word in str(caught.value)
    assert_same(before, tiny.snapshot(model))


# Tables of a class of their own


@pytest.mark.core
@pytest.mark.parametrize("native", ["keep", "gate", "drop"])
def test_tables_of_their_own_class_are_copied_and_pickled_with_it(native):
    model = tiny.patched("bart", native=native)
    batch = tiny.inputs("bart")
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(tiny.logits(twin, batch), tiny.logits(model, batch))
        assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
        fill(twin, seed=7)
        assert tiny.differ(tiny.logits(twin, batch), tiny.logits(model, batch)) > 0.05
        tables = [unpatch_model(twin).model.encoder.embed_positions, twin.model.decoder.embed_positions]
        assert {type(table).__name__ for table in tables} == {"BartLearnedPositionalEmbedding"}


def test_table_that_is_given_no_tensor_can_be_dropped(register):
    """Marian's are asked for the rows of a shape. Dropped ones add what tables of zeros add."""
    owners = ("MarianEncoder", "MarianDecoder")
    register(
        dataclasses.replace(
            BART,
            package="marian",
            config="MarianConfig",
            attention="MarianAttention",
            natives=tuple(AbsoluteEmbedding(owner=owner, table="embed_positions") for owner in owners),
        )
    )
    config = transformers.MarianConfig(**{**tiny.BART_LIKE, "forced_eos_token_id": 0})
    model = tiny.randomise(transformers.MarianMTModel(config).eval())
    stock = copy.deepcopy(model)
    for stack in (stock.model.encoder, stock.model.decoder):
        nn.init.zeros_(stack.embed_positions.weight)
    batch = tiny.inputs("bart")
    assert_close(tiny.logits(patch_model(model, RelPosConfig("shaw", native="drop")), batch), tiny.logits(stock, batch))


@pytest.mark.parametrize("native", ["keep", "gate", "drop"])
def test_resizing_the_positions_of_a_patched_model_is_refused_and_that_of_an_unpatched_one_works(native):
    model = tiny.patched("distilbert", native=native)
    batch, before = tiny.inputs("distilbert"), tiny.snapshot(model)
    for part in (model, model.distilbert):
        with pytest.raises(PatchStateError, match=r"resized to 20: .*unpatch_model"):
            part.resize_position_embeddings(20)
    assert_same(before, tiny.snapshot(model))
    unpatch_model(model).resize_position_embeddings(20)
    tiny.logits(patch_model(model, RelPosConfig("shaw", native=native)), batch)
    assert patch_report(model).trained_length == 20


def test_each_table_of_a_model_has_a_gate_that_acts():
    model, batch = patch_model(build("bart"), RelPosConfig("shaw")), tiny.inputs("bart")
    before = tiny.logits(model, batch)
    for stack in (model.model.encoder, model.model.decoder):
        with torch.no_grad():
            stack.embed_positions.relpos_gate.weight.fill_(0.5)
        assert tiny.differ(tiny.logits(model, batch), before) > 0.05
        before = tiny.logits(model, batch)


@pytest.mark.core
@pytest.mark.parametrize("native", ["keep", "gate"])
@pytest.mark.parametrize("family", ["roberta", "bart"])
def test_length_that_fits_is_reported_and_named_where_the_table_has_other_rows_too(family, native):
    """RoBERTa's table has 17 rows here, the first for padding; BART's has 18, and two are never used."""
    model = tiny.patched(family, native=native)
    assert patch_report(model).trained_length == 16
    tiny.logits(model, tiny.inputs(family, length=16, padding=False))
    with pytest.raises(
        ValueError, match=r"Position 16 \(counted from 0\) is beyond the 16 positions.*to 16 tokens.*hf_relpos\.convert"
    ):
        tiny.logits(model, tiny.inputs(family, length=17, padding=False))


def test_distilberts_sinusoids_can_be_dropped_from_a_model_that_is_built(tmp_path):
    config = tiny.config_of("distilbert", sinusoidal_pos_embds=True)
    model = hf_relpos.RelPosDistilBertModel(config, relpos=RelPosConfig("shaw", native="drop"))
    model.save_pretrained(tmp_path)
    ids = tiny.tokens(1, 20)
    with torch.no_grad():
        loaded = transformers.AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state
        assert torch.equal(loaded, model.eval()(ids).last_hidden_state)


# T5's bias where its distances are small


@pytest.mark.core
@pairs(family=T5_LIKES, distance=(9, 10, 12, 16, 17), lengths=((1, 1), (16, 16), (40, 28), (9, 40)))
def test_small_bucketed_distances_give_what_stock_gives_or_its_error(family, distance, lengths):
    """32 buckets: in a decoder, up to 16 its logarithms run the wrong way, and out of the buckets."""
    more = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": distance}
    batch = {"input_ids": tiny.tokens(1, lengths[0]), "decoder_input_ids": tiny.tokens(1, lengths[1], seed=4)}
    stock = build(family, dtype=torch.float64, **more)
    model = patch_model(build(family, dtype=torch.float64, **more), RelPosConfig("shaw", native="keep"))
    try:
        expected = tiny.logits(stock, batch)
    except IndexError:
        with pytest.raises(IndexError):
            tiny.logits(model, batch)
        assert distance <= 16 < lengths[1]
    else:
        assert_close(tiny.logits(model, batch), expected)


@pytest.mark.parametrize("static", [False, True])
def test_small_bucketed_distances_are_right_with_a_cache(static):
    more = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 12}
    model = patch_model(build("t5", dtype=torch.float64, **more), RelPosConfig("shaw", native="keep"))
    batch = {"input_ids": tiny.tokens(1, 9), "decoder_input_ids": tiny.tokens(1, 20, seed=4)}
    full = tiny.logits(model, batch)
    static_cache = transformers.StaticCache(model.config.get_text_config(decoder=True), max_cache_len=40)
    cache = transformers.EncoderDecoderCache(
        static_cache if static else transformers.DynamicCache(), transformers.DynamicCache()
    )
    parts = []
    for start, size in ((0, 7), (7, 1), (8, 12)):
        part = {**batch, "decoder_input_ids": batch["decoder_input_ids"][:, start : start + size]}
        parts.append(tiny.logits(model, part, use_cache=True, **tiny.caching(model, cache)))
    assert_close(torch.cat(parts, 1), full)
