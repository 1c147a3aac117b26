"""Wrong input gets an error that names it and what is allowed, and leaves the model as it was."""

from __future__ import annotations

import functools
import tempfile

import pytest
import tiny
import torch
import transformers
from tiny import FAMILIES, assert_same, build, choices, patched
from torch import nn

import hf_relpos
from hf_relpos import (
    ClippedBias,
    NothingPatchedError,
    PatchStateError,
    RelPosConfig,
    RelPosConfigError,
    RelPosError,
    Shaw,
    T5Bias,
    UnknownFieldError,
    UnsupportedModelError,
    is_patched,
    patch_model,
    patch_report,
    unpatch_model,
)

SUPPORTED = ("Bert", "Roberta", "DistilBert", "GPT2", "Bart", "T5", "MT5", "UMT5")


def refused(error, *words, model=None, relpos="shaw", call=None):
    """The call raises the error, its message has all the words, and nothing of the model has changed."""
    inner = model if isinstance(model, nn.Module) else None
    before = tiny.snapshot(inner) if inner is not None else None
    with pytest.raises(error) as caught:
        (call or functools.partial(patch_model, model, relpos))()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    assert isinstance(caught.value, RelPosError)
    if before is not None:
        assert_same(before, tiny.snapshot(inner))
    return str(caught.value)


@pytest.mark.core
@pytest.mark.parametrize(
    ("relpos", "words"),
    [
        ("shwa", ("'shwa'", "'shaw'", "'t5'", "'clipped'")),
        (["shaw", "rope"], ("'rope'", "'shaw'")),
        ({"schemes": [{"type": "sandwich"}]}, ("'sandwich'", "'shaw'")),
        ({"schemes": [{"type": "shaw", "distance": 3}]}, ("Shaw", "'distance'", "'max_distance'")),
        ({"schemes": ["shaw"], "gates": "head"}, ("RelPosConfig", "'gates'", "'gate'")),
        ({"schemes": [{"max_distance": 3}]}, ("None", "'shaw'")),
        ([], ("schemes",)),
        (16, ("relpos", "16", "RelPosConfig")),
        (None, ("relpos", "None", "RelPosConfig")),
        (Shaw, ("relpos", "Shaw")),
        ([Shaw], ("schemes", "Shaw")),
    ],
    ids=lambda value: None,
)
def test_unknown_scheme_or_field_is_named_and_the_model_unchanged(relpos, words):
    for family in tiny.KINDS:
        refused(RelPosConfigError, *words, model=build(family), relpos=relpos)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Shaw", "Did you mean 'shaw'?"),
        ("ClippedBias", "Did you mean 'clipped'?"),
        (
            "shaw:8,value=false",
            "'shaw:8,value=false' is how a command is told; here it is Shaw(max_distance=8, value=False).",
        ),
        ("sandwich", ""),
    ],
)
def test_what_was_probably_meant_by_a_name_that_no_scheme_has_is_told(name, hint):
    said = refused(RelPosConfigError, f"`scheme` is {name!r}", call=functools.partial(RelPosConfig, name))
    assert said.partition("'dynamic_convolution'.")[2].strip() == hint


@pytest.mark.parametrize(
    ("relpos", "named"),
    [(Shaw, "Shaw"), ([T5Bias], "T5Bias"), (RelPosConfig, "RelPosConfig"), ({"schemes": Shaw}, "Shaw")],
)
def test_a_class_in_place_of_what_is_made_of_it_is_told_so(relpos, named):
    refused(
        RelPosConfigError,
        f"is the class {named}, but must be made of it: {named}(...)",
        model=build("bert"),
        relpos=relpos,
    )


def test_a_name_in_place_of_a_model_is_never_taken_for_one_without_a_patch():
    refused(UnsupportedModelError, "was given 'bert' (str)", call=functools.partial(is_patched, "bert"))


def test_the_class_of_a_model_in_place_of_a_model_is_told_so():
    refused(
        UnsupportedModelError, "was given the class BertModel, but takes a model of it", model=transformers.BertModel
    )


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"native": "drop", "window": 3}, ("'native', 'window'", "RelPosConfig(schemes=..., native='drop', window=3)")),
        ({"max_distance": 3}, ("'max_distance'", "RelPosConfig has 'schemes', 'native'", "a scheme's config its own")),
    ],
)
def test_choices_beside_relpos_are_told_where_they_belong(choices, words):
    model = build("bert")
    call = functools.partial(patch_model, model, "shaw", **choices)
    refused(UnknownFieldError, "patch_model has no argument", *words, model=model, call=call)


def test_choices_beside_relpos_are_told_where_they_belong_while_loading_too(tmp_path):
    build("bert").save_pretrained(tmp_path)
    load = functools.partial(hf_relpos.RelPosBertForMaskedLM.from_pretrained, tmp_path, relpos="shaw")
    refused(
        UnknownFieldError,
        "RelPosBertForMaskedLM has no argument 'native'",
        "RelPosConfig(schemes=..., native='drop')",
        call=functools.partial(load, native="drop"),
    )


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (RelPosConfig, ("'schemes'", "'engine'", "a scheme has")),
        (Shaw, ("'max_distance'", "'rank'", "such as `native`, goes into RelPosConfig")),
        (T5Bias, ("'num_buckets'",)),
    ],
)
def test_a_field_that_a_config_does_not_have_is_named_with_those_it_has(cls, words):
    said = refused(
        UnknownFieldError, f"{cls.__name__} has no field 'spin'", *words, call=functools.partial(cls, spin=3)
    )
    assert "written by" not in said


@pytest.mark.core
@pytest.mark.parametrize("cls", [Shaw, T5Bias, ClippedBias])
@pytest.mark.parametrize("value", [0, -3, 2.5, "16", True, None])
def test_distance_that_is_no_positive_number_is_named(cls, value):
    with pytest.raises(ValueError, match=f"{cls.__name__}.*`max_distance` is {value!r}.*at least 1"):
        cls(max_distance=value)


@pytest.mark.core
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: T5Bias(num_buckets=7), ("num_buckets", "7", "even")),
        (lambda: T5Bias(num_buckets=2), ("num_buckets", "2", "4")),
        (lambda: T5Bias(num_buckets=0), ("num_buckets", "0")),
        (lambda: T5Bias(num_buckets=32, max_distance=8), ("max_distance", "8", "num_buckets=32")),
        (lambda: T5Bias(init="ones"), ("init", "'ones'", "'zeros'", "'trunc_normal'")),
        (lambda: Shaw(init_std=0.0), ("init_std", "0.0", "positive")),
        (lambda: Shaw(init_std=float("inf")), ("init_std", "inf")),
        (lambda: Shaw(key=False, value=False), ("key", "value")),
        (lambda: Shaw(key=1), ("key", "1", "True or False")),
        (lambda: Shaw(rank=0), ("rank", "0")),
        (lambda: Shaw(rank=1.5), ("rank", "1.5")),
        (lambda: RelPosConfig("shaw", native="none"), ("native", "'none'", "'keep'", "'gate'", "'drop'")),
        (lambda: RelPosConfig("shaw", gate="layer"), ("gate", "'layer'", "'none'", "'head'", "'token'")),
        (lambda: RelPosConfig("shaw", engine="fast"), ("engine", "'fast'", "'auto'", "'eager'", "'blockwise'")),
        (lambda: RelPosConfig("shaw", window=0), ("window", "0")),
        (lambda: RelPosConfig("shaw", window=1.5), ("window", "1.5")),
        (lambda: RelPosConfig("shaw", window=True), ("window", "True")),
        (lambda: RelPosConfig("shaw", layers=[-1]), ("layers", "-1")),
        (lambda: RelPosConfig("shaw", layers=[]), ("layers", "[]")),
        (lambda: RelPosConfig("shaw", layers=[0.5]), ("layers", "0.5")),
        (lambda: RelPosConfig("shaw", layers=1), ("layers", "1")),
        (lambda: RelPosConfig("shaw", share_layers="yes"), ("share_layers", "'yes'")),
        (lambda: RelPosConfig("shaw", native=["keep"]), ("native", "keep")),
        (lambda: RelPosConfig(schemes=None), ("schemes",)),
        (lambda: RelPosConfig(), ("schemes", "'shaw'")),
    ],
)
def test_wrong_value_names_the_field_the_value_and_what_is_allowed(call, words):
    refused(RelPosConfigError, *words, call=call)


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert-decoder", "gpt2", "t5", "mt5", "umt5"])
def test_buckets_that_a_causal_layer_cannot_use_are_refused_before_anything_changes(family):
    """They are fine in an encoder, so only the model shows that they are not; in T5 the encoder is wired first."""
    refused(RelPosConfigError, "max_distance", "16", "causal", model=build(family), relpos=T5Bias(32, 16))
    refused(RelPosConfigError, "causal", model=build(family), relpos=["shaw", T5Bias(32, 9), "clipped"])
    patch_model(build("bert"), T5Bias(32, 16))


@pytest.mark.core
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_patching_twice_is_refused_and_changes_nothing(family, native, tmp_path):
    model = patched(family, "shaw", native)
    batch = tiny.inputs(family)
    logits = tiny.logits(model, batch)
    for relpos in ("shaw", "t5", RelPosConfig.of(model.config.relpos)):
        refused(PatchStateError, "already patched", "unpatch_model", type(model).__name__, model=model, relpos=relpos)
    assert torch.equal(tiny.logits(model, batch), logits)
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    refused(PatchStateError, "already patched", "convert" if native == "drop" else "unpatch_model", model=loaded)


@pytest.mark.core
@pytest.mark.parametrize("thing", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), "bert-base-uncased", None, 3])
def test_what_is_no_transformers_model_is_refused_by_name(thing):
    refused(UnsupportedModelError, type(thing).__name__, *SUPPORTED, "register_family", model=thing)
    with pytest.raises(TypeError):
        patch_model(thing, "shaw")


@pytest.mark.core
@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        ("CamembertConfig", {**tiny.BERT_LIKE, "max_position_embeddings": 18}),
        ("ElectraConfig", {**tiny.BERT_LIKE, "embedding_size": 16}),
        ("OPTConfig", {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "ffn_dim": 16, "word_embed_proj_dim": 16}),
        ("LlamaConfig", {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                         "intermediate_size": 16}),
        ("MPNetConfig", tiny.BERT_LIKE),
        ("MBartConfig", {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
                        "encoder_attention_heads": 2, "decoder_attention_heads": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_unsupported_family_is_refused_by_name_with_the_list_of_supported_ones(config, arguments):
    model = transformers.AutoModel.from_config(getattr(transformers, config)(**arguments))
    refused(UnsupportedModelError, type(model).__name__, *SUPPORTED, model=model)


def test_users_subclass_of_a_supported_model_is_refused_not_half_patched():
    class MyBert(transformers.BertForMaskedLM):
        pass

    refused(UnsupportedModelError, "MyBert", model=MyBert(tiny.config_of("bert")))


@pytest.mark.core
def test_model_wrapped_by_peft_is_told_to_patch_first():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(build("bert"), LoraConfig(target_modules=["query"]))
    refused(UnsupportedModelError, "PEFT", "Patch the model first", call=lambda: patch_model(model, "shaw"))
    assert not is_patched(model)
    mixed = get_peft_model(build("gpt2"), LoraConfig(target_modules=["c_attn"]), mixed=True)
    refused(UnsupportedModelError, "PEFT", call=lambda: patch_model(mixed, "shaw"))


@pytest.mark.core
def test_model_wrapped_by_data_parallelism_is_told_to_patch_first(tmp_path):
    def check(wrapped):
        kind = type(wrapped).__name__
        refused(UnsupportedModelError, kind, "Patch the model first", call=lambda: patch_model(wrapped, "shaw"))
        assert not is_patched(wrapped)

    check(nn.DataParallel(build("bert")))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        check(nn.parallel.DistributedDataParallel(build("bert")))  # gone before its process group
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.core
def test_compiled_model_is_told_to_patch_first():
    compiled = torch.compile(build("bert"))
    refused(UnsupportedModelError, "torch.compile", "Patch the model first", call=lambda: patch_model(compiled, "shaw"))
    in_place = build("bert")
    in_place.compile()
    refused(UnsupportedModelError, "torch.compile", "Patch the model first", model=in_place)


def test_model_with_a_replaced_forward_is_told_to_patch_first():
    import accelerate

    model = accelerate.dispatch_model(build("bert"), {"": "cpu"}, force_hooks=True)
    refused(UnsupportedModelError, "forward", "Patch the model first", model=model)
    model = build("gpt2")
    model.transformer.forward = model.transformer.forward
    with pytest.raises(UnsupportedModelError, match="transformer"):
        patch_model(model, "shaw")


def test_model_on_the_meta_device_is_refused():
    with torch.device("meta"):
        model = transformers.BertForMaskedLM(tiny.config_of("bert"))
    with pytest.raises(UnsupportedModelError, match="meta"):
        patch_model(model, "shaw")
    assert not is_patched(model)


def test_model_that_contains_supported_models_is_told_where_they_are():
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        tiny.config_of("bert"), tiny.config_of("bert")
    )
    model = transformers.EncoderDecoderModel(config)
    said = refused(UnsupportedModelError, "EncoderDecoderModel", "model.encoder", "model.decoder", model=model)
    assert said.index("model.encoder") < said.index("Supported are")  # what helps comes first
    patch_model(model.encoder, "shaw")
    refused(PatchStateError, "already patched", "inside", model=model)
    refused(PatchStateError, "EncoderDecoderModel", "model.encoder", model=model, call=lambda: unpatch_model(model))


@pytest.mark.core
def test_model_without_layers_is_an_error_that_lists_what_was_found():
    model = build("bert", num_hidden_layers=0)
    refused(NothingPatchedError, "BertForMaskedLM", "BertSelfAttention", "Nothing was patched", model=model)
    refused(NothingPatchedError, "GPT2Attention", "none", model=build("gpt2", n_layer=0))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_not_there_are_an_error_that_lists_those_that_are(family):
    for share_layers in (False, True):
        relpos = RelPosConfig("shaw", layers=[1, 2, 7], share_layers=share_layers)
        refused(NothingPatchedError, "[2, 7]", "0 to 1", "Nothing was patched", model=build(family), relpos=relpos)


def test_layers_that_only_the_longer_stack_of_an_encoder_decoder_has():
    """Fewer layers in one stack are no error: the layers named exist in the other."""
    model = patch_model(build("t5", num_layers=3, num_decoder_layers=1), RelPosConfig("shaw", layers=[2]))
    assert patch_report(model).num_layers == 1


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_unpatching_or_reporting_on_what_is_not_patched_is_an_error(family):
    model = build(family)
    refused(PatchStateError, type(model).__name__, "not patched", model=model, call=lambda: unpatch_model(model))
    refused(PatchStateError, type(model).__name__, "not patched", model=model, call=lambda: patch_report(model))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_unpatching_a_model_that_never_had_its_native_positions_is_refused(family, tmp_path):
    patched(family, "shaw", "drop").save_pretrained(tmp_path)
    model = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    refused(PatchStateError, "dropped", "original checkpoint", model=model, call=lambda: unpatch_model(model))


def test_every_error_is_also_the_built_in_one_people_catch():
    assert issubclass(UnsupportedModelError, TypeError)
    assert issubclass(UnknownFieldError, TypeError)
    for error in (PatchStateError, NothingPatchedError, RelPosConfigError, UnknownFieldError):
        assert issubclass(error, ValueError)
        assert issubclass(error, RelPosError)


def test_config_from_a_newer_version_names_the_version():
    stored = {**RelPosConfig("shaw").to_dict(), "version": "99.0", "spin": 3}
    refused(RelPosConfigError, "'spin'", "99.0", hf_relpos.__version__, call=lambda: RelPosConfig.from_dict(stored))
    with tempfile.TemporaryDirectory() as folder:
        model = patched("bert")
        model.save_pretrained(folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        refused(RelPosConfigError, "'spin'", "99.0", call=lambda: setattr(config, "relpos", stored))


def test_wrong_choices_are_refused_while_loading_too(tmp_path):
    build("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'shwa'"):
        hf_relpos.RelPosBertForMaskedLM.from_pretrained(tmp_path, relpos="shwa")
    with pytest.raises(NothingPatchedError, match="0 to 1"):
        hf_relpos.RelPosBertForMaskedLM.from_pretrained(tmp_path, relpos=RelPosConfig("shaw", layers=[5]))
    with pytest.raises(RelPosConfigError, match="native"):
        choices("shaw", "absolute")
