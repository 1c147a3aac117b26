"""PEFT: adapters train and save what a patch added, come back exactly, and are refused where they have no place."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import warnings

import peft
import pytest
import safetensors.torch
import tiny
import torch
import transformers
from peft import AutoPeftModel, LoraConfig, PeftModel, get_peft_model
from peft.utils import constants
from tiny import FAMILIES, KINDS, build, choices, fill, inputs, logits, patched
from torch import nn
from transformers import BitsAndBytesConfig

import hf_relpos.checkpoints.adapters
from hf_relpos import PatchStateError, RelPosConfig, Shaw, T5Bias, patch_model, peft_modules_to_save, unpatch_model

TASKS = {"bert": "TOKEN_CLS", "bert-decoder": "CAUSAL_LM", "gpt2": "CAUSAL_LM"}
AUTO_PEFT = {"gpt2": "AutoPeftModelForCausalLM", "t5": "AutoPeftModelForSeq2SeqLM"}


@pytest.fixture(autouse=True)
def _no_peft_warnings_about_its_own_calls():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def lora(model, method=LoraConfig, **arguments):
    return method(modules_to_save=peft_modules_to_save(model), **arguments)


def adapted(family, scheme="shaw", native="gate", gate="head", method=LoraConfig, seed=1, patch=None, **arguments):
    model = fill(patch_model(build(family), choices(scheme, native, gate, **(patch or {}))), seed)
    return get_peft_model(model, lora(model, method, **arguments))


def trained_copies(model):
    """The added parameters that an adapter trains, by their name without what PEFT puts into it."""
    return {
        name.replace(".modules_to_save.default", ""): parameter
        for name, parameter in model.named_parameters()
        if "relpos" in name and ".modules_to_save.default." in name
    }


def adapter_file(folder):
    return safetensors.torch.load_file(folder / "adapter_model.safetensors")


# What to save


@pytest.mark.core
def test_names_reach_every_added_parameter_and_nothing_else():
    for family in FAMILIES:
        for native, expected in (("keep", ["relpos"]), ("gate", ["relpos", "relpos_gate"]), ("drop", ["relpos"])):
            for share_layers in (False, True):
                model = patched(family, "sum", native, share_layers=share_layers)
                *names, patch = peft_modules_to_save(model)
                assert names == expected
                paths = [path for path, _ in model.named_modules() if path.endswith(tuple(names))]
                reached = {
                    name for name, _ in model.named_parameters() if any(name.startswith(path + ".") for path in paths)
                }
                assert reached == set(tiny.added(model))
                assert not any(path.endswith(patch) for path, _ in model.named_modules())


class Around(nn.Module):
    """A user's model around a patched one, under a name of the user's choice."""

    def __init__(self, name, inner):
        super().__init__()
        self.add_module(name, inner)
        self.name = name

    def forward(self, **batch):
        return getattr(self, self.name)(**batch)


@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("name", ["inner", "bert_relpos", "relpos", "relpos_gate"])
def test_adapter_trains_what_was_added_whatever_the_user_calls_the_model(name, share_layers, tmp_path):
    def base(seed):
        return Around(name, fill(patched("bert", "sum", share_layers=share_layers), seed))

    first = base(1)
    model = get_peft_model(first, lora(first, target_modules=["query"]))
    trained = {
        parameter_name.replace(".modules_to_save.default", "").removeprefix("base_model.model.")
        for parameter_name, parameter in model.named_parameters()
        if parameter.requires_grad and "lora_" not in parameter_name
    }
    assert trained == {f"{name}.{added}" for added in tiny.added(patched("bert", "sum", share_layers=share_layers))}
    assert len([path for path, _ in model.named_modules() if path.endswith("lora_A")]) == tiny.LAYERS
    assert peft_modules_to_save(model) == peft_modules_to_save(first)
    tiny.train(model, "bert", steps=1)
    model.save_pretrained(tmp_path)
    reloaded = PeftModel.from_pretrained(base(9), tmp_path)
    assert tiny.differ(logits(reloaded, inputs("bert")), logits(model, inputs("bert"))) == 0


def test_a_module_that_peft_cannot_tell_from_ours_is_named():
    model = patched("bert", cls="BertModel", share_layers=True)
    model.my_relpos = nn.Linear(2, 2)
    with pytest.raises(PatchStateError, match=r"BertModel has a module 'my_relpos' .* does not end with 'relpos'"):
        peft_modules_to_save(model)


def test_unpatched_model_has_nothing_to_save():
    with pytest.raises(PatchStateError, match=r"BertForMaskedLM is not patched.* Call patch_model first"):
        peft_modules_to_save(build("bert"))


# Default targets


def adapted_paths(model, config):
    model = get_peft_model(model, config)
    return {
        path
        for path, module in model.base_model.model.named_modules()
        if isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer)
    }


@pytest.mark.core
@pytest.mark.parametrize("method", [peft.LoraConfig, peft.IA3Config, peft.AdaLoraConfig, peft.FourierFTConfig])
@pytest.mark.parametrize("family", FAMILIES)
def test_default_targets_are_those_of_the_stock_model(family, method):
    arguments = {peft.AdaLoraConfig: {"total_step": 10}, peft.FourierFTConfig: {"n_frequency": 9}}.get(method, {})
    model = patched(family)
    if family == "distilbert":  # PEFT has none, and no other model's modules are called as these
        with pytest.raises(ValueError, match="target_modules"):
            adapted_paths(model, lora(model, method, **arguments))
        return
    ours = adapted_paths(model, lora(model, method, **arguments))
    # PEFT itself has none for UMT5, whose modules are called as those of MT5.
    theirs = adapted_paths(build("mt5" if family == "umt5" else family), method(**arguments))
    assert ours == theirs
    assert ours


def test_every_kind_of_default_target_is_there():
    mappings = [value for name, value in vars(constants).items() if name.endswith("_TARGET_MODULES_MAPPING")]
    assert len(mappings) > 10
    for mapping in mappings:
        for package in ("bert", "gpt2", "t5", "mt5"):
            assert mapping.get(f"relpos-{package}") == mapping.get(package)


def test_importing_the_package_does_not_import_peft_but_tells_it_when_it_is_imported():
    script = """
import sys, hf_relpos
assert "peft" not in sys.modules
import peft
assert type(peft.__loader__) is type(peft.__spec__.loader) is type(sys.modules["peft.config"].__loader__)
mapping = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
assert mapping["relpos-bert"] == mapping["bert"]
assert peft.tuners.tuners_utils.BaseTuner.inject_adapter.relpos_checked
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


def test_peft_imported_before_the_package_is_told_too(monkeypatch):
    mapping = constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
    monkeypatch.delitem(mapping, "relpos-bert")
    importlib.reload(hf_relpos)
    assert mapping["relpos-bert"] == mapping["bert"]


def test_registering_again_changes_nothing():
    tuner = peft.tuners.tuners_utils.BaseTuner
    before = tuner.inject_adapter, tuner._replace_module, list(sys.meta_path)
    importlib.reload(hf_relpos)
    assert (tuner.inject_adapter, tuner._replace_module, list(sys.meta_path)) == before


# Training and reloading


def check_round_trip(family, model, folder, base):
    """One step moves everything that was added; saved and put on another base, it is the trained model."""
    before = {name: parameter.detach().clone() for name, parameter in trained_copies(model).items()}
    assert set(before) == {f"base_model.model.{name}" for name in tiny.added(base)}
    tiny.train(model, family, steps=1)
    for name, parameter in trained_copies(model).items():
        assert not torch.equal(parameter, before[name]), name
    model.save_pretrained(folder)
    saved = adapter_file(folder)
    for name, parameter in trained_copies(model).items():
        assert torch.equal(saved[name], parameter), name
    assert not any("position_embeddings.weight" in name or "wpe.weight" in name for name in saved)
    reloaded = PeftModel.from_pretrained(base, folder)
    batch = inputs(family)
    assert tiny.differ(logits(reloaded, batch), logits(model, batch)) == 0
    return reloaded


@pytest.mark.core
@tiny.few(*KINDS)
def test_adapter_round_trip_on_a_base_patched_with_another_seed(family, scheme, native, gate, tmp_path):
    model = adapted(family, scheme, native, gate)
    check_round_trip(family, model, tmp_path, patched_with_seed(9, family, scheme, native, gate))


def patched_with_seed(seed, family, scheme="shaw", native="gate", gate="head", **more):
    return fill(patch_model(build(family), choices(scheme, native, gate, **more)), seed)


@pytest.mark.parametrize("family", ["bert-decoder", "mt5", "umt5"])
def test_adapter_round_trip_of_the_relatives(family, tmp_path):
    check_round_trip(family, adapted(family, "sum"), tmp_path, patched_with_seed(9, family, "sum"))


@pytest.mark.parametrize(
    "more", [{"share_layers": True}, {"layers": [1]}, {"layers": [1], "share_layers": True}], ids=str
)
@pytest.mark.parametrize("family", KINDS)
def test_adapter_round_trip_with_shared_and_left_out_layers(family, more, tmp_path):
    base = patched_with_seed(9, family, "sum", **more)
    check_round_trip(family, adapted(family, "sum", patch=more), tmp_path, base)


METHODS = {
    "dora": (peft.LoraConfig, {"use_dora": True}),
    "rslora": (peft.LoraConfig, {"use_rslora": True, "r": 4}),
    "adalora": (peft.AdaLoraConfig, {"total_step": 10}),
    "ia3": (peft.IA3Config, {}),
    "loha": (peft.LoHaConfig, {}),
    "lokr": (peft.LoKrConfig, {}),
    "oft": (peft.OFTConfig, {"oft_block_size": 0, "r": 2}),
    "vera": (peft.VeraConfig, {}),
}
NOT_ON_GPT2 = ("loha", "lokr", "oft")  # PEFT's do not know the layers that it is built of


@pytest.mark.parametrize(
    ("family", "method"),
    [(family, method) for family in KINDS for method in METHODS if family != "gpt2" or method not in NOT_ON_GPT2],
)
def test_adapter_round_trip_with_other_methods(family, method, tmp_path):
    method, arguments = METHODS[method]
    model = adapted(family, "sum", method=method, **arguments)
    check_round_trip(family, model, tmp_path, patched_with_seed(9, family, "sum"))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_touches_nothing_of_ours(family):
    model = patched(family, "sum", "gate", "token")
    ours = adapted_paths(model, lora(model, target_modules="all-linear"))
    theirs = adapted_paths(build(family), LoraConfig(target_modules="all-linear"))
    assert ours == theirs


@pytest.mark.parametrize("family", KINDS)
def test_adapter_of_a_bfloat16_model_trains_and_reloads(family, tmp_path):
    model = fill(patch_model(build(family, dtype=torch.bfloat16), choices("sum")))
    model = get_peft_model(model, lora(model))
    tiny.train(model, family, steps=1, rate=0.5)
    model.save_pretrained(tmp_path)
    base = fill(patch_model(build(family, dtype=torch.bfloat16), choices("sum")), 9)
    reloaded = PeftModel.from_pretrained(base, tmp_path)
    assert tiny.differ(logits(reloaded, inputs(family)), logits(model, inputs(family))) == 0


# On and off, merged, through the Auto classes


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_disabled_adapter_is_the_base_and_merged_one_is_the_trained_model(family, tmp_path):
    batch = inputs(family)
    model = adapted(family, "sum", seed=1)
    base = logits(model, batch)
    tiny.train(model, family, steps=2, rate=0.2)
    trained = logits(model, batch)
    assert tiny.differ(trained, base) > 1e-2
    with model.disable_adapter():
        assert torch.equal(logits(model, batch), base)
    assert torch.equal(logits(model, batch), trained)
    merged = model.merge_and_unload()
    tiny.assert_close(logits(merged, batch), trained)
    assert list(merged.state_dict()) == list(patched(family, "sum").state_dict())
    merged.save_pretrained(tmp_path)
    tiny.assert_close(logits(type(merged).from_pretrained(tmp_path).eval(), batch), trained)
    unpatch_model(merged)
    assert list(merged.state_dict()) == list(build(family).state_dict())


@pytest.mark.core
@pytest.mark.parametrize("way", ["merge_and_unload", "unload"])
@pytest.mark.parametrize(("family", "method"), [*(("bert", method) for method in METHODS), ("gpt2", "ia3")])
def test_every_kind_of_adapter_comes_off_and_leaves_the_trained_tables(family, method, way):
    method, arguments = METHODS[method]
    model, batch = adapted(family, "sum", method=method, **arguments).eval(), inputs(family)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    trained = {name.removeprefix("base_model.model."): copy.detach() for name, copy in trained_copies(model).items()}
    whole = logits(model, batch)
    tables_alone = patched(family, "sum")
    tables_alone.load_state_dict(trained, strict=False)
    without = logits(tables_alone, batch)  # PEFT keeps what was to be saved as it was trained, merged or not
    assert tiny.differ(whole, without) > 1e-2
    bare = getattr(model, way)()
    assert list(bare.state_dict()) == list(tables_alone.state_dict())
    for name, parameter in tiny.added(bare).items():
        assert torch.equal(parameter, trained[name]), name
    tiny.assert_close(logits(bare, batch), whole if way == "merge_and_unload" else without)
    unpatch_model(bare)
    assert list(bare.state_dict()) == list(build(family).state_dict())


@pytest.mark.parametrize("family", AUTO_PEFT)
def test_auto_peft_loads_base_and_adapter(family, tmp_path):
    patched_with_seed(3, family, "sum").save_pretrained(tmp_path / "base")
    base = getattr(hf_relpos, type(patched(family)).__name__).from_pretrained(tmp_path / "base")
    model = get_peft_model(base, lora(base, task_type=TASKS.get(family, "SEQ_2_SEQ_LM")))
    tiny.train(model, family, steps=1)
    model.save_pretrained(tmp_path / "adapter")
    loaded = getattr(peft, AUTO_PEFT[family]).from_pretrained(tmp_path / "adapter")
    assert tiny.differ(logits(loaded, inputs(family)), logits(model, inputs(family))) == 0


@pytest.mark.parametrize("family", KINDS)
def test_auto_peft_without_a_task_type_loads_base_and_adapter_once_the_package_is_allowed(family, tmp_path):
    patched_with_seed(3, family, "sum").save_pretrained(tmp_path / "base")
    base = getattr(hf_relpos, type(patched(family)).__name__).from_pretrained(tmp_path / "base")
    model = get_peft_model(base, lora(base))
    tiny.train(model, family, steps=1)
    model.save_pretrained(tmp_path / "adapter")
    allowed = {}
    if "import_allowlist" in inspect.signature(AutoPeftModel.from_pretrained).parameters:  # older PEFT imports anything
        allowed = {"import_allowlist": ["hf_relpos"]}
        with pytest.raises(ValueError, match=r"import_allowlist=\['hf_relpos"):
            AutoPeftModel.from_pretrained(tmp_path / "adapter")
    loaded = AutoPeftModel.from_pretrained(tmp_path / "adapter", **allowed)
    assert type(loaded.get_base_model()) is type(base)
    assert tiny.differ(logits(loaded, inputs(family)), logits(model, inputs(family))) == 0


def test_the_task_heads_own_layer_is_trained_beside_the_tables(tmp_path):
    batch = {**inputs("bert"), "labels": torch.tensor([0, 1, 0])}
    model = patched("bert", "sum", cls="BertForSequenceClassification")
    model = get_peft_model(model, lora(model, task_type="SEQ_CLS"))
    loss = model(**batch).loss
    loss.backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    model.eval().save_pretrained(tmp_path)
    assert any("classifier" in name for name in adapter_file(tmp_path))
    base = fill(patched("bert", "sum", cls="BertForSequenceClassification"), 9)
    reloaded = PeftModel.from_pretrained(base, tmp_path)
    assert tiny.differ(logits(reloaded, inputs("bert")), logits(model, inputs("bert"))) == 0


# Quantised bases (QLoRA)

# Wide enough for the kernels that bitsandbytes has for CPUs.
WIDE = {
    "bert": {"hidden_size": 64, "intermediate_size": 128},
    "gpt2": {"n_embd": 64},
    "t5": {"d_model": 64, "d_kv": 32, "d_ff": 128},
}
quantised = pytest.mark.parametrize(("family", "bits"), [(family, bits) for family in KINDS for bits in (4, 8)])


def load_quantised(folder, family, bits, **more):
    pytest.importorskip("bitsandbytes")
    if bits == 4:
        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    else:
        how = BitsAndBytesConfig(load_in_8bit=True)
    model = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(folder, quantization_config=how, **more)
    assert any(type(module).__name__ in ("Linear4bit", "Linear8bitLt") for module in model.modules())
    return model.eval()


def assert_added_is_that_of(model, other):
    """Tables and gates have the values, and the kind, that they had before anything was quantised."""
    expected = tiny.added(other)
    assert tiny.added(model).keys() == expected.keys()
    for name, parameter in tiny.added(model).items():
        assert type(parameter) is nn.Parameter, name
        assert parameter.dtype == expected[name].dtype, name
        assert torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@quantised
def test_quantised_patched_model_keeps_its_tables_and_gates_as_they_are(family, bits, dtype, tmp_path):
    saved = patched(family, "sum", "gate", "token", dtype=dtype, config=WIDE[family])
    saved.save_pretrained(tmp_path)
    model = load_quantised(tmp_path, family, bits, dtype=dtype)
    assert_added_is_that_of(model, saved)
    model.save_pretrained(tmp_path / "quantised")
    again = type(model).from_pretrained(tmp_path / "quantised").eval()
    assert_added_is_that_of(again, saved)
    assert tiny.differ(logits(again, inputs(family)), logits(model, inputs(family))) == 0


@quantised
def test_patch_on_a_quantised_plain_model_changes_nothing_and_goes_again(family, bits, tmp_path):
    stock = build(family, **WIDE[family])
    stock.save_pretrained(tmp_path)
    model, batch = load_quantised(tmp_path, family, bits), inputs(family)
    before = logits(model, batch)
    assert tiny.differ(before, logits(stock, batch)) > 1e-3
    patch_model(model, choices("sum", "gate", "token"))
    assert {parameter.dtype for parameter in tiny.added(model).values()} == {torch.float32}
    tiny.assert_close(logits(model, batch), before, atol=1e-3)  # 8 bit rounds its inputs to float16
    assert tiny.differ(logits(fill(model), batch), before) > 1e-1
    assert torch.equal(logits(unpatch_model(model), batch), before)


@quantised
def test_adapter_round_trip_on_a_quantised_base(family, bits, tmp_path):
    saved = patched(family, "sum", "gate", "token", config=WIDE[family])
    saved.save_pretrained(tmp_path / "base")
    base, other = (load_quantised(tmp_path / "base", family, bits) for _ in range(2))
    prepared = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    assert_added_is_that_of(prepared, saved)
    model = get_peft_model(prepared, lora(prepared))
    check_round_trip(family, model, tmp_path / "adapter", other)


# Refusals


@pytest.fixture
def adapter(tmp_path):
    adapted("bert", "sum").save_pretrained(tmp_path)
    return tmp_path


OTHERS = {
    "another scheme": RelPosConfig(Shaw(3)),
    "fewer schemes": RelPosConfig(tiny.SCHEMES["sum"][:2]),
    "more schemes": RelPosConfig((*tiny.SCHEMES["sum"], Shaw(3))),
    "same shapes": RelPosConfig((tiny.SCHEMES["sum"][0], T5Bias(8, 9), tiny.SCHEMES["sum"][2])),
    "another native": RelPosConfig(tiny.SCHEMES["sum"], native="keep"),
    "another gate": RelPosConfig(tiny.SCHEMES["sum"], gate="token"),
    "another window": RelPosConfig(tiny.SCHEMES["sum"], window=4),
    "other layers": RelPosConfig(tiny.SCHEMES["sum"], layers=[0]),
}


@pytest.mark.core
@pytest.mark.parametrize("other", OTHERS)
def test_adapter_of_another_patch_is_refused_naming_both(adapter, other):
    base = patch_model(build("bert"), OTHERS[other])
    before = tiny.snapshot(base)
    with pytest.raises(PatchStateError, match="made on a model patched with") as error:
        PeftModel.from_pretrained(base, adapter)
    for patch in (choices("sum"), OTHERS[other]):
        assert str(patch) in str(error.value)
    tiny.assert_same(before, tiny.snapshot(base))


def test_what_does_not_change_the_function_is_no_other_patch(adapter):
    start = [Shaw(2, per_head=True, rank=3, init="trunc_normal", init_std=0.1), *tiny.SCHEMES["sum"][1:]]
    base = patch_model(build("bert"), RelPosConfig(start, engine="eager"))
    assert isinstance(PeftModel.from_pretrained(base, adapter), PeftModel)


@pytest.mark.core
@pytest.mark.parametrize("way", ["PeftModel", "load_adapter", "second adapter", "get_peft_model"])
def test_adapter_on_an_unpatched_base_is_refused_with_the_reason(adapter, way):
    base = build("bert")
    ways = {
        "PeftModel": lambda: PeftModel.from_pretrained(base, adapter),
        "load_adapter": lambda: base.load_adapter(str(adapter)),
        "second adapter": lambda: get_peft_model(base, LoraConfig()).load_adapter(adapter, "second"),
        "get_peft_model": lambda: get_peft_model(base, lora(patched("bert", "sum"))),
    }
    with pytest.raises(PatchStateError, match=r"but BertForMaskedLM is not patched: .* would be lost") as error:
        ways[way]()
    assert str(choices("sum")) in str(error.value)
    assert not any("relpos" in name for name in base.state_dict())


@pytest.mark.core
def test_names_given_by_hand_are_refused_on_an_unpatched_base_too(tmp_path):
    model = get_peft_model(patched("bert"), LoraConfig(modules_to_save=["relpos", "relpos_gate"]))
    model.save_pretrained(tmp_path)
    with pytest.raises(
        PatchStateError, match=r"modules_to_save=\['relpos', 'relpos_gate'\], but BertForMaskedLM is not"
    ):
        PeftModel.from_pretrained(build("bert"), tmp_path)


def test_adapter_without_our_parameters_goes_on_any_base(tmp_path):
    get_peft_model(build("bert"), LoraConfig()).save_pretrained(tmp_path)
    batch = inputs("bert")
    model = patched("bert")
    before = logits(model, batch)
    assert torch.equal(logits(PeftModel.from_pretrained(model, tmp_path), batch), before)
    assert isinstance(PeftModel.from_pretrained(build("bert"), tmp_path), PeftModel)


def test_the_patch_is_stored_with_the_adapter(adapter):
    *_, entry = json.loads((adapter / "adapter_config.json").read_text())["modules_to_save"]
    stored = json.loads(entry.removeprefix(hf_relpos.checkpoints.adapters.PATCH_ENTRY))
    assert RelPosConfig.from_dict(stored) == choices("sum")


# Prompts

prompts = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")  # passed on by PEFT


def prompted(model, method, **arguments):
    """A model behind trainable prompts, whose values depend on the seed alone."""
    torch.manual_seed(5)
    return get_peft_model(model, method(num_virtual_tokens=3, **arguments)).eval()


@prompts
@pytest.mark.parametrize("method", [peft.PromptTuningConfig, peft.PrefixTuningConfig, peft.PromptEncoderConfig])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_prompts_on_a_fresh_patch_do_what_they_do_on_the_stock_model(family, method):
    arguments = {"task_type": TASKS.get(family, "SEQ_2_SEQ_LM")}
    if method is peft.PromptEncoderConfig:
        arguments["encoder_hidden_size"] = 8
    batch = tiny.labelled(family, padding=True)
    theirs = prompted(build(family), method, **arguments)
    ours = prompted(patch_model(build(family), choices("sum")), method, **arguments)
    tiny.assert_close(logits(ours, batch), logits(theirs, batch))
    for model in (ours, theirs):
        model(**batch).loss.backward()
    gradients = [
        {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
        for model in (ours, theirs)
    ]
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        tiny.assert_close(gradient, gradients[1][name])


def test_prompts_take_part_in_relative_positions():
    """The tokens stand behind the prompt, and see it at its distance: as if it were part of the input."""
    model = prompted(patched("gpt2", "sum", "drop"), peft.PromptTuningConfig, task_type="CAUSAL_LM")
    ids = tiny.tokens(2, 6)
    base = model.get_base_model()
    prompt = model.get_prompt(batch_size=2)
    whole = torch.cat([prompt, base.get_input_embeddings()(ids)], dim=1)
    tiny.assert_close(logits(model, {"input_ids": ids}), logits(base, {"inputs_embeds": whole}))


@prompts
def test_prefixes_take_part_in_relative_positions():
    """Keys and values of a prefix, put there by PEFT, are seen at their distance: as those of real tokens."""
    base = patched("gpt2", "sum", "drop")
    ids = tiny.tokens(1, 9)
    with torch.no_grad():
        past = tiny.cache_of(base(ids[:, :3], use_cache=True))
    model = prompted(base, peft.PrefixTuningConfig, task_type="CAUSAL_LM")
    rows = torch.cat([torch.cat([layer.keys, layer.values]) for layer in past.layers])  # [2 * layers, heads, 3, dim]
    table = rows.permute(2, 0, 1, 3).reshape(3, -1)
    with torch.no_grad():
        model.prompt_encoder["default"].embedding.weight.copy_(table)
    tiny.assert_close(logits(model, {"input_ids": ids[:, 3:]})[:, -6:], logits(base, {"input_ids": ids})[:, 3:])


@prompts
@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("gpt2", peft.PromptTuningConfig),
        ("gpt2", peft.PromptEncoderConfig),
        ("gpt2", peft.PrefixTuningConfig),
        ("t5", peft.PromptTuningConfig),
        ("t5", peft.PromptEncoderConfig),
    ],
)
def test_generating_behind_prompts_is_what_the_forward_pass_gives(family, method):
    """In a padded batch; GPT-2 without a cache, with which PEFT loses its prompts on newer releases of Transformers."""
    arguments = {"encoder_hidden_size": 8} if method is peft.PromptEncoderConfig else {}
    model = prompted(patched(family, "sum", "drop"), method, task_type=TASKS.get(family, "SEQ_2_SEQ_LM"), **arguments)
    ids = tiny.tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "use_cache": family == "t5"}
    record = {"return_dict_in_generate": True, "output_logits": True}
    out = model.generate(input_ids=ids, attention_mask=mask, **options, **record)
    made, given = torch.stack(out.logits, dim=1), out.sequences[:, :-1]
    if family == "gpt2":
        batch = {"input_ids": given, "attention_mask": torch.cat([mask, mask.new_ones(2, 3)], dim=1)}
    else:
        batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": given}
    tiny.assert_close(made, logits(model, batch, use_cache=False)[:, -4:])
    stripped = logits(model.get_base_model(), batch, use_cache=False)[:, -4:]
    assert tiny.differ(made, stripped) > 1e-2


def outcome(model, batch):
    """The logits, or the error that comes instead."""
    try:
        return logits(model, batch)
    except ValueError as error:
        return str(error)


@prompts
@pytest.mark.filterwarnings("ignore:.use_return_dict. is deprecated")
def test_prefix_tuning_of_an_encoder_ends_as_it_does_for_the_stock_model():
    """PEFT refuses it where the model takes no cache, which depends on the releases of both libraries."""
    stock = build("bert", "BertForTokenClassification")
    fresh = patch_model(build("bert", "BertForTokenClassification"), choices("sum"))
    theirs, ours = (
        outcome(prompted(model, peft.PrefixTuningConfig, task_type="TOKEN_CLS"), inputs("bert"))
        for model in (stock, fresh)
    )
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        tiny.assert_close(ours, theirs)


class TestChecker:
    """The check itself, without PEFT around it."""

    def test_nothing_of_ours_is_nothing_to_check(self):
        hf_relpos.checkpoints.adapters.check_adapter(nn.Linear(2, 2), ["classifier", "score"])

    def test_models_inside_count(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = patched("bert"), patched("gpt2", "t5")

        *names, first, second = peft_modules_to_save(Two())
        assert names == ["relpos", "relpos_gate"]
        hf_relpos.checkpoints.adapters.check_adapter(Two(), [*names, first, second])
        with pytest.raises(PatchStateError, match="Two is patched with"):
            hf_relpos.checkpoints.adapters.check_adapter(Two(), [*names, first])


# Several adapters in one batch: case 31


def two_adapters(family, native, **arguments):
    model = adapted(family, "sum", native, **arguments)
    model.add_adapter("second", model.peft_config["default"])
    return model.eval()


@pytest.mark.core
@pytest.mark.parametrize("native", ["gate", "drop"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_mixed_batches_are_refused_and_leave_the_model_usable(family, native):
    model, batch = two_adapters(family, native), inputs(family)
    fill(model, 5)
    expected = logits(model, batch)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    for _ in range(2):
        with pytest.raises(PatchStateError, match=r"mixes adapters .*at '.*relpos.*Call set_adapter"):
            logits(model, batch, adapter_names=["default", "second", "default"])
        assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks
        assert torch.equal(logits(model, batch), expected)
    model.set_adapter("second")  # as the error says
    assert tiny.differ(logits(model, batch), expected) > 1e-3
    if family == "gpt2":
        with pytest.raises(PatchStateError, match="mixes adapters"):
            model.generate(batch["input_ids"], adapter_names=["default", "second", "default"])


def test_adapters_that_share_the_tables_of_their_base_may_be_mixed():
    base = patched("bert", "sum")
    model = get_peft_model(base, LoraConfig(init_lora_weights=False))
    model.add_adapter("second", LoraConfig(init_lora_weights=False))
    model.eval()
    batch = inputs("bert", padding=False)
    rows = {}
    for name in ("default", "second"):
        model.set_adapter(name)
        rows[name] = logits(model, batch)
    mixed = logits(model, batch, adapter_names=["default", "second", "default"])
    for row, name in enumerate(["default", "second", "default"]):
        tiny.assert_close(mixed[row], rows[name][row])
