"""A patched model that was saved comes back bit for bit: in this process and in a fresh one, through every class."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import fresh
import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import FAMILIES, NATIVE, SCHEMES, assert_close, build, choices, fill, patched
from transformers import EncoderDecoderConfig, EncoderDecoderModel

import hf_relpos
from hf_relpos import ClippedBias, PatchStateError, RelPosConfig, Shaw, is_patched, patch_model, unpatch_model


def auto(family):
    return getattr(transformers, tiny.AUTO_HEAD[family])


@pairs(family=FAMILIES, scheme=SCHEMES, apart=("family", "scheme"))
def test_reload_without_a_head_keeps_what_was_added(family, scheme, tmp_path):
    model = patched(family, scheme)
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path)
    assert is_patched(base)
    for name, parameter in tiny.added(base).items():
        (whole,) = [full for full in tiny.added(model) if full == name or full.endswith("." + name)]
        assert torch.equal(parameter, tiny.added(model)[whole]), name


@pytest.mark.core
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loading_with_an_attn_implementation_gives_the_same_logits(family, implementation, tmp_path):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    model.save_pretrained(tmp_path)
    twin = tiny.load(auto(family), tmp_path, attn_implementation=implementation)
    tiny.assert_equal_models(model, twin, batch)
    twin.set_attn_implementation("eager" if implementation == "sdpa" else "sdpa")
    assert torch.equal(tiny.logits(twin, batch), tiny.logits(model, batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_saving_twice_gives_the_same_files_and_a_third_load(family, tmp_path):
    model = patched(family, "sum", "gate", "head", layers=[1])
    model.save_pretrained(tmp_path / "first")
    again = tiny.load(auto(family), tmp_path / "first")
    again.save_pretrained(tmp_path / "second")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes(), name
    tiny.assert_equal_models(model, tiny.load(auto(family), tmp_path / "second"), tiny.inputs(family))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_config_on_disk_names_our_type_class_version_and_every_choice(family, tmp_path):
    config = choices("sum", "drop", "token", window=7, layers=[0], engine="blockwise")
    model = patch_model(build(family), config)
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"].startswith("relpos-")
    assert stored["architectures"] == [type(model).__name__]
    assert stored["relpos"]["version"] == hf_relpos.__version__
    assert RelPosConfig.from_dict(stored["relpos"]) == config
    assert stored["relpos"]["window"] == 7
    assert stored["relpos"]["layers"] == [0]
    assert "_attn_implementation" not in stored
    assert "_attn_implementation_internal" not in stored
    wanted = {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    wanted["auto_map"] = {"AutoConfig": f"modeling_hf_relpos.{type(model.config).__name__}"}
    assert transformers.AutoConfig.from_pretrained(tmp_path).to_dict() == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_unpatched_model_saves_and_loads_as_the_stock_class(family, tmp_path):
    stock = build(family)
    stock.save_pretrained(tmp_path / "stock")
    model = auto(family).from_pretrained(tmp_path / "stock")
    unpatch_model(fill(patch_model(model, "shaw")))
    model.save_pretrained(tmp_path / "back")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "stock" / name).read_bytes(), name
    # A reloaded patched model has a way back, too.
    patched(family, "shaw", "gate").save_pretrained(tmp_path / "patched")
    back = unpatch_model(auto(family).from_pretrained(tmp_path / "patched"))
    back.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "stock" / name).read_bytes(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_patched_mlm_keeps_its_tables_under_another_head(family, tmp_path):
    heads = {
        "bert": ["AutoModelForSequenceClassification", "AutoModelForTokenClassification"],
        "bert-decoder": ["AutoModelForSequenceClassification"],
        "gpt2": ["AutoModelForSequenceClassification", "AutoModelForTokenClassification"],
        "bart": ["AutoModelForQuestionAnswering"],
    }
    heads = heads.get(family, ["AutoModelForSequenceClassification", "AutoModelForQuestionAnswering"])
    model = patched(family, "sum", "gate", "head")
    model.save_pretrained(tmp_path)
    prefix = "transformer." if family in tiny.T5_LIKES else ""
    for head in heads:
        other = getattr(transformers, head).from_pretrained(tmp_path)
        ours = {name.removeprefix(prefix): parameter for name, parameter in tiny.added(other).items()}
        assert set(ours) == set(tiny.added(model)), head
        for name, parameter in tiny.added(model).items():
            assert torch.equal(ours[name], parameter), (head, name)


def test_losing_some_of_the_added_parameters_is_reported(tmp_path):
    model = patched("bert", "sum", "gate", "head")
    state = model.state_dict()
    lost = "bert.encoder.layer.1.attention.self.relpos.schemes.0.key_table.left"
    del state[lost]
    model.save_pretrained(tmp_path, state_dict=state)
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {lost}


@pytest.mark.parametrize(
    "other",
    [Shaw(max_distance=5), RelPosConfig(Shaw(max_distance=3), window=2), RelPosConfig("shaw", native="drop"), "t5"],
    ids=["another size", "a window", "native", "another scheme"],
)
def test_loading_with_other_choices_is_refused(tmp_path, other):
    patched("bert", "shaw", "gate", "head").save_pretrained(tmp_path)
    with pytest.raises(PatchStateError, match=r"The checkpoint has .* only the engine may differ"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, relpos=other)


def test_loading_with_another_engine_keeps_the_rest(tmp_path):
    model = patched("bert", "shaw", "gate", "head")
    model.save_pretrained(tmp_path)
    asked = replace(RelPosConfig.of(model.config.relpos), engine="eager")
    other = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, relpos=asked)
    assert other.config.relpos == {**model.config.relpos, "engine": "eager"}
    for name, parameter in tiny.added(model).items():
        assert torch.equal(tiny.added(other)[name], parameter), name


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_model_whose_config_asks_for_attentions_saves_and_loads(family, tmp_path):
    model = patched(family, "sum", "gate", "head")
    model.config.output_attentions = True
    batch = tiny.inputs(family)
    model.save_pretrained(tmp_path)
    twin = tiny.load(auto(family), tmp_path)
    assert twin.config.output_attentions is True
    with torch.no_grad():
        out = twin(**batch)
    # The flag was set on the outer config only; loaded, the stacks of T5 have it too, and record in another order.
    assert_close(out.logits, tiny.logits(model, batch))
    weights = out.decoder_attentions if family in tiny.ENCODER_DECODERS else out.attentions
    assert len(weights) == tiny.LAYERS


@pytest.mark.parametrize("native", NATIVE)
def test_encoder_decoder_of_two_patched_models_is_exact_after_reload(native, tmp_path):
    """The parts are patched one by one, with different choices."""
    config = EncoderDecoderConfig.from_encoder_decoder_configs(tiny.config_of("bert"), tiny.config_of("bert"))
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = tiny.randomise(EncoderDecoderModel(config)).eval()
    batch = tiny.inputs("t5")
    stock = tiny.logits(model, batch)
    patch_model(model.encoder, choices("sum", "gate" if native == "drop" else native, "token"))
    patch_model(model.decoder, choices("clipped", native, "head"))
    assert is_patched(model)
    if native != "drop":
        assert_close(tiny.logits(model, batch), stock)
    fill(model)
    model.save_pretrained(tmp_path)
    twin = tiny.load(EncoderDecoderModel, tmp_path)
    assert type(twin.encoder).__name__ == "RelPosBertModel"
    assert type(twin.decoder) is type(model.decoder)
    tiny.assert_equal_models(model, twin, batch)
    again = tiny.load(transformers.AutoModelForSeq2SeqLM, tmp_path)
    tiny.assert_equal_models(model, again, batch)
    for part in (model.encoder, model.decoder):
        unpatch_model(part)
    assert torch.equal(tiny.logits(model, batch), stock)


# Fresh processes: few, because each one imports everything again.

FRESH = """
import sys, json, torch
{imports}
import transformers
report = {{}}
for family, auto in json.loads(sys.argv[2]).items():
    folder = sys.argv[1] + "/" + family
    try:
        model, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    except Exception as error:
        report[family] = repr(error)
        continue
    saved = torch.load(folder + "/expected.pt")
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert type(model).__name__ == saved["class"], type(model)
    state = model.state_dict()
    assert list(state) == list(saved["state"])
    assert all(torch.equal(state[name], tensor) for name, tensor in saved["state"].items())
    with torch.no_grad():
        logits = model.double()(**saved["batch"]).logits
    # Up to rounding, and so in float64: some matrix products of these sizes depend on where in memory the weights lie.
    assert torch.allclose(logits, saved["logits"], rtol=0, atol=1e-9), family
    report[family] = "equal"
print("REPORT" + json.dumps(report))
"""


def in_fresh_process(imports: str, folder: Path, heads: dict[str, str]) -> dict[str, str]:
    said = fresh.run(FRESH.format(imports=imports), str(folder), json.dumps(heads))
    return json.loads(said.rpartition("REPORT")[2])


@pytest.fixture(scope="module")
def saved_models(tmp_path_factory):
    """A folder with a patched model and its expected outputs for each family."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("saved")
    for index, family in enumerate(FAMILIES):
        for scheme, native in (("sum", NATIVE[index % 3]), (list(SCHEMES)[index], NATIVE[(index + 1) % 3])):
            where = f"{family}+{scheme}"
            model = patched(family, scheme, native, "token" if scheme == "sum" else "head")
            model.save_pretrained(folder / where)
            batch = tiny.inputs(family)
            expected = {
                "class": type(model).__name__,
                "state": dict(model.state_dict()),
                "batch": batch,
                "logits": tiny.logits(copy.deepcopy(model).double(), batch),
            }
            torch.save(expected, folder / where / "expected.pt")
    return folder


def heads_of(folder: Path) -> dict[str, str]:
    return {path.name: tiny.AUTO_HEAD[path.name.split("+")[0]] for path in sorted(folder.iterdir())}


@pytest.mark.core
def test_reload_is_exact_in_a_fresh_process(saved_models):
    heads = heads_of(saved_models)
    threads = "torch.set_num_threads(1)\nimport hf_relpos"
    assert in_fresh_process(threads, saved_models, heads) == dict.fromkeys(heads, "equal")


@pytest.mark.core
def test_fresh_process_without_the_plug_in_refuses_to_load(saved_models):
    """Relative positions must not vanish silently."""
    heads = heads_of(saved_models)
    report = in_fresh_process("", saved_models, heads)
    for family, outcome in report.items():
        assert "custom code" in outcome, (family, outcome)
        assert "trust_remote_code=True" in outcome, (family, outcome)


def test_state_dict_has_only_ordinary_contiguous_tensors_and_no_buffers_of_ours():
    for scheme in SCHEMES:
        model = patched("gpt2", scheme, "gate", "token")
        for name, tensor in model.state_dict().items():
            assert type(tensor) is torch.Tensor, name
        assert [name for name, _ in model.named_buffers() if "relpos" in name] == []


def test_clipped_bias_default_survives_a_reload(tmp_path):
    model = fill(patch_model(build("gpt2"), ClippedBias()))
    model.save_pretrained(tmp_path)
    twin = tiny.load(transformers.AutoModelForCausalLM, tmp_path)
    tiny.assert_equal_models(model, twin, tiny.inputs("gpt2"))


@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("kept", [[0, 1], [1, 2], [0, 2, 1]])
def test_layers_removed_or_moved_after_patching_are_refused_when_saved(
    kept: list[int], share_layers: bool, tmp_path: Path
):
    model = patch_model(
        build("bert", num_hidden_layers=3), RelPosConfig("shaw", layers=[0, 2], share_layers=share_layers)
    )
    layers = model.bert.encoder.layer
    model.bert.encoder.layer = torch.nn.ModuleList(layers[place] for place in [2, 1, 0])
    model.save_pretrained(tmp_path / "same")  # those that act are still 0 and 2
    model.bert.encoder.layer = torch.nn.ModuleList(layers[place] for place in kept)
    model.config.num_hidden_layers = len(kept)
    with pytest.raises(PatchStateError, match=r"layers=\[0, 2\]"):
        model.save_pretrained(tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
