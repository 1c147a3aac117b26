"""What is known of a patch: which there are in a model, what was added, and whether the model still is what it says."""

from __future__ import annotations

import copy
import re

import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from test_held_configs import composite
from tiny import KINDS, build, choices, fill, patched
from transformers import Trainer, TrainingArguments

import hf_relpos
from hf_relpos import PatchStateError, RelPosConfig, Shaw, T5Bias, patch_model, peft_modules_to_save, unpatch_model
from hf_relpos.checkpoints.resuming import check_checkpoint
from hf_relpos.modeling import state

# Which patches there are


def test_patches_are_those_that_layers_run_with_wherever_they_are():
    model = composite()
    assert state.patches_of(model) == []
    first, second = choices("shaw"), choices("t5", "keep")
    patch_model(model.encoder, first)
    patch_model(model.decoder, second)
    wrapped = torch.nn.Sequential(torch.nn.DataParallel(model), patched("bert", "shaw"))
    assert state.patches_of(wrapped) == [first, second]
    layer = torch.nn.ModuleList([copy.deepcopy(model.decoder.bert.encoder.layer[0])])
    assert state.patches_of(layer) == [second]
    assert [entry for entry in peft_modules_to_save(model) if entry in ("relpos", "relpos_gate")] == [
        "relpos",
        "relpos_gate",
    ]


def test_saved_patches_are_told_by_part_and_not_taken_from_others():
    ours = RelPosConfig(Shaw(4))
    part = {"model_type": "relpos-bert", "relpos": ours.to_dict()}
    theirs = {"model_type": "mine", "relpos": "something of mine", "relpos-config": part["relpos"]}
    assert state.saved_patches(theirs) == {}
    assert state.saved_patches(part) == {"": ours}
    assert state.saved_patches({**theirs, "encoder": part, "more": {"text_config": part}}) == {
        "encoder": ours,
        "more.text_config": ours,
    }


def test_resuming_an_encoder_decoder_tells_its_parts_apart(tmp_path):
    """The tensors of both have the same names and shapes; only the configs tell."""
    near, far = RelPosConfig(T5Bias(8, 6)), RelPosConfig(T5Bias(8, 7))

    def made(encoder, decoder):
        model = composite()
        patch_model(model.encoder, encoder)
        patch_model(model.decoder, decoder)
        return model

    made(near, far).save_pretrained(tmp_path)
    check_checkpoint(made(near, far), tmp_path)
    check_checkpoint(torch.nn.DataParallel(made(near, RelPosConfig(T5Bias(8, 7, init="trunc_normal")))), tmp_path)
    for other in (made(far, near), made(near, near), composite()):
        with pytest.raises(PatchStateError, match=r"The checkpoint .* was made with .* and .*, but the EncoderDecoder"):
            check_checkpoint(other, tmp_path)


def test_what_is_called_like_ours_is_not_taken_for_ours(tmp_path):
    """Names are the user's. Only a whole component of a path, in the place where a patch puts it, is ours."""

    class Mine(hf_relpos.RelPosBertForMaskedLM):
        def __init__(self, config):
            super().__init__(config)
            self.my_relpos = torch.nn.Linear(2, 2)
            self.relpos_head = torch.nn.Linear(2, 2)
            self.post_init()

    model = Mine(patched("bert").config)
    assert not any("my_relpos" in name or "relpos_head" in name for name, _, _ in state.added_parameters(model))
    strange = ("relpos_head.old", "bert.relpos_2.weight")
    weights = {**model.state_dict(), **{name: torch.zeros(2) for name in strange}}
    del weights["my_relpos.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    _, info = Mine.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"my_relpos.weight"}
    assert set(info["unexpected_keys"]) == set(strange)
    model.load_state_dict(weights, strict=False)


@pytest.mark.parametrize("native", ["gate", "keep"])
@pytest.mark.parametrize("family", KINDS)
def test_keys_without_a_place_are_told_from_those_of_parts_that_are_not_there(family, native):
    model = patched(family, "shaw", native)
    keys = list(model.state_dict())
    assert state.strange_keys(model, keys) == []
    assert {key for key in keys if state.place_of(key) is not None} == set(tiny.added(model))
    ours = sorted(tiny.added(model))
    assert state.strange_keys(unpatched(model), ours) == ours
    further = [re.sub(r"\.(layer|h|block)\.\d+\.", r".\1.9.", key) for key in ours if "embeddings" not in key]
    further = [key for key in further if ".9." in key]
    assert further
    assert state.strange_keys(model, further) == []


def unpatched(model):
    return unpatch_model(copy.deepcopy(model))


def test_copies_of_data_parallelism_may_not_share_the_tables_of_the_first():
    model = patched("bert", share_layers=True)
    for _, attention in tiny.self_attentions(model):
        attention._is_replica = True  # as torch.nn.DataParallel marks them
    with pytest.raises(RuntimeError, match="DataParallel cannot run a model patched with share_layers=True"):
        tiny.logits(model, tiny.inputs("bert"))


# Whether a model still is what its config says: case 25


def turned(family, scheme):
    model = patched(family, scheme)
    if family == "gpt2":
        model.config.is_causal = False
    else:
        model.config.is_decoder = not model.config.is_decoder
    return model


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2"])
def test_a_direction_turned_after_the_patch_is_refused_where_a_scheme_goes_by_it(family, tmp_path):
    model = turned(family, "t5")
    for use in (hf_relpos.patch_report, lambda model: model.save_pretrained(tmp_path / "model")):
        with pytest.raises(PatchStateError, match=r"changed after the model was made .*schemes.0 has causal"):
            use(model)
    assert not (tmp_path / "model").exists()
    unpatch_model(model).save_pretrained(tmp_path / "stock")
    again = patch_model(type(model).from_pretrained(tmp_path / "stock"), choices("t5"))
    again.save_pretrained(tmp_path / "model")  # as the error says


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2"])
def test_a_direction_turned_after_the_patch_is_saved_where_no_scheme_goes_by_it(family, tmp_path):
    model = turned(family, "shaw")
    model.save_pretrained(tmp_path)
    twin = type(model).from_pretrained(tmp_path).eval()
    batch = tiny.inputs(family)
    assert torch.equal(tiny.real_logits(twin, batch), tiny.real_logits(model, batch))


def test_a_direction_in_which_the_scheme_cannot_be_is_refused_too(tmp_path):
    model = fill(patch_model(build("bert"), T5Bias(num_buckets=32, max_distance=12)))
    model.config.is_decoder = True
    with pytest.raises(PatchStateError, match=r"changed after the model was made .*`max_distance` is 12"):
        model.save_pretrained(tmp_path / "model")


def test_heads_changed_after_the_patch_are_refused(tmp_path):
    model = patched("bert")
    model.config.num_attention_heads = 1
    with pytest.raises(PatchStateError, match=r"has weight of shape \(1, 7, 8\), and would have \(1, 7, 16\)"):
        model.save_pretrained(tmp_path / "model")


def test_an_adapter_around_the_relative_positions_does_not_hide_them():
    import peft

    model = turned("bert", "t5")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(modules_to_save=peft_modules_to_save(model)))
    with pytest.raises(PatchStateError, match=r"schemes.0 has causal False"):
        hf_relpos.patch_report(wrapped.base_model.model)


@pytest.mark.parametrize("family", KINDS)
def test_looking_whether_a_model_is_what_it_says_changes_nothing(family):
    model = patched(family, "sum", "gate", "token")
    before, numbers = tiny.snapshot(model), torch.get_rng_state()
    hf_relpos.patch_report(model)
    tiny.assert_same(before, tiny.snapshot(model))
    assert torch.equal(torch.get_rng_state(), numbers)


# The mark of being initialised: case 20


def into_an_encoder_decoder(model):
    decoder = transformers.BertLMHeadModel(tiny.config_of("bert", is_decoder=True, add_cross_attention=True))
    return transformers.EncoderDecoderModel(encoder=model, decoder=decoder).encoder


def into_a_users_own(model):
    class Own(transformers.PreTrainedModel):
        config_class = transformers.BertConfig

        def __init__(self, config, inner):
            super().__init__(config)
            self.inner, self.head = inner, torch.nn.Linear(2, 2)
            self.post_init()

        def _init_weights(self, module):
            super()._init_weights(module)

    return Own(tiny.config_of("bert"), model).inner


def into_a_patched_one(model):
    outer = patch_model(build("bert", cls="BertForSequenceClassification"), choices("sum", "gate", "token"))
    outer.bert = model
    outer.post_init()
    return outer.bert


def asked_itself(model):
    model.init_weights()
    return model


def asked_module_by_module(model):
    for module in model.modules():
        if state.added_modules(module):
            model._initialize_weights(module)
    return model


WAYS = [into_an_encoder_decoder, into_a_users_own, into_a_patched_one, asked_itself, asked_module_by_module]


@pytest.mark.core
@pytest.mark.parametrize("first", ["nothing", "a deep copy", "a change of dtype", "a pickle", "a save and load"])
@pytest.mark.parametrize("way", WAYS)
def test_trained_tables_and_gates_survive_all_that_asks_for_start_values(way, first, tmp_path):
    model = fill(patch_model(build("bert", cls="BertModel"), choices("sum", "gate", "token")))
    if first == "a deep copy":
        model = copy.deepcopy(model)
    elif first == "a change of dtype":
        model = model.to(torch.bfloat16).to(torch.float32)
    elif first == "a pickle":
        torch.save(model, tmp_path / "model.pt")
        model = torch.load(tmp_path / "model.pt", weights_only=False)
    elif first == "a save and load":
        model.save_pretrained(tmp_path)
        model = type(model).from_pretrained(tmp_path)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    after = way(model)
    assert before.keys() == dict(after.named_parameters()).keys()
    for name, parameter in after.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_parameters_are_marked_as_those_of_a_loaded_model_are(tmp_path):
    """Asked for start values module by module, such a model keeps what it has; so does what a patch has added to it."""
    build("bert").save_pretrained(tmp_path)
    model = patch_model(transformers.BertForMaskedLM.from_pretrained(tmp_path), choices("sum", "gate", "token"))
    before = {name: parameter.clone() for name, parameter in fill(model).named_parameters()}
    model.apply(model._init_weights)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_a_copied_layer_keeps_its_tables_in_another_model():
    layer = copy.deepcopy(patched("bert", "sum").bert.encoder.layer[0])
    tables = {name: parameter.clone() for name, parameter in tiny.added(layer).items()}
    other = patch_model(build("bert"), choices("sum"))
    other.bert.encoder.layer[1] = layer
    other.init_weights()
    for name, parameter in tiny.added(layer).items():
        assert torch.equal(parameter, tables[name]), name


PUT_IN_BY_PEFT = r"base_model\.model\.|modules_to_save\.default\.|original_module\."


def test_new_tokens_and_a_wrapping_adapter_leave_the_tables_alone():
    import peft

    model = patched("bert", "sum")
    before = {name: parameter.clone() for name, parameter in tiny.added(model).items()}
    model.resize_token_embeddings(60)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(modules_to_save=peft_modules_to_save(model)))
    wrapped.base_model.model.init_weights()
    for name, parameter in wrapped.named_parameters():
        if ".relpos" in name:
            name = (
                name.replace("base_model.model.", "")
                .replace("modules_to_save.default.", "")
                .replace("original_module.", "")
            )
            assert torch.equal(parameter, before[name]), name


def test_random_start_values_are_still_drawn_where_there_are_none_yet():
    """Marked are models that were patched; one that is being constructed is not, and starts as it always has."""
    config = RelPosConfig(Shaw(4, init="trunc_normal"))
    model = hf_relpos.RelPosBertModel(tiny.config_of("bert"), relpos=config)
    assert all(parameter.abs().sum() > 0 for parameter in tiny.added(model).values())


# Fewer layers: case 21

CUTS = {
    "bert": ("bert", {"num_hidden_layers": 1}, "RelPosBertModel"),
    "gpt2": ("gpt2", {"n_layer": 1}, "RelPosGPT2Model"),
    "t5, encoder": ("t5", {"num_layers": 1}, "RelPosT5EncoderModel"),
    "t5, decoder": ("t5", {"num_decoder_layers": 1}, "RelPosT5ForQuestionAnswering"),
    "umt5, both": ("umt5", {"num_layers": 1, "num_decoder_layers": 1}, "RelPosUMT5EncoderModel"),
    "bart, encoder": ("bart", {"encoder_layers": 1}, "RelPosBartModel"),
    "bart, decoder": ("bart", {"decoder_layers": 1}, "RelPosBartModel"),
    "distilbert": ("distilbert", {"n_layers": 1}, "RelPosDistilBertModel"),
    "roberta": ("roberta", {"num_hidden_layers": 1}, "RelPosRobertaModel"),
}


@pytest.mark.core
@pairs(of=CUTS, native=tiny.NATIVE, share_layers=(False, True), apart=("of", "native", "share_layers"))
def test_the_first_layers_load_as_they_do_in_stock_models(of, native, share_layers, tmp_path):
    family, cut, other = CUTS[of]
    model = patched(family, "sum", native, share_layers=share_layers)
    model.save_pretrained(tmp_path / "patched")
    weights = model.state_dict()
    for cls in (type(model), getattr(hf_relpos, other)):
        loaded, info = cls.from_pretrained(tmp_path / "patched", output_loading_info=True, **cut)
        assert not any("relpos" in name for name in info["missing_keys"])
        assert tiny.added(loaded)
        for name, parameter in loaded.state_dict().items():
            stored = next(
                (weights[key] for key in (name, f"{loaded.base_model_prefix}.{name}") if key in weights), None
            )
            assert torch.equal(parameter, stored) if stored is not None else name in info["missing_keys"], name
    loaded.save_pretrained(tmp_path / "again")


def test_layers_that_are_left_keep_their_numbers_and_those_that_are_not_are_named(tmp_path):
    model = patched("bert", config={"num_hidden_layers": 4}, layers=[1, 3])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, num_hidden_layers=3)
    assert loaded.config.relpos["layers"] == [1]
    assert set(tiny.added(loaded)) == {name for name in tiny.added(model) if ".layer.3." not in name}
    hf_relpos.patch_report(loaded)
    assert type(model).from_pretrained(tmp_path, num_labels=3).config.relpos["layers"] == [1, 3]
    with pytest.raises(PatchStateError, match=r"in the layers \[1, 3\], and none .* first 1 of 4.*at least 2"):
        type(model).from_pretrained(tmp_path, num_hidden_layers=1)


@pytest.mark.parametrize(
    "other", [T5Bias(8, 6), RelPosConfig(Shaw(3), share_layers=True), RelPosConfig(Shaw(3), gate="none")]
)
def test_relative_positions_of_another_patch_are_still_refused_with_fewer_layers(other, tmp_path):
    model = patched("bert")
    model.save_pretrained(tmp_path)
    config = copy.deepcopy(model.config)
    config.relpos, config.num_hidden_layers = other, 1
    for cls in (type(model), hf_relpos.RelPosBertModel):
        with pytest.raises(PatchStateError, match=r"has '(bert\.)?encoder\.layer\.0\..*relpos.*for which RelPosConfig"):
            cls.from_pretrained(tmp_path, config=config)


def test_training_goes_on_in_the_first_layers(tmp_path):
    model = patched("bert")
    model.save_pretrained(tmp_path)
    cut = type(model).from_pretrained(tmp_path, num_hidden_layers=1)
    rows = [{"input_ids": row, "labels": row} for row in tiny.tokens(4, 7)]
    arguments = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to=[], disable_tqdm=True)
    Trainer(cut, arguments, train_dataset=rows).train()
