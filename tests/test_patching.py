"""What patch_model and unpatch_model promise: the right function, the same object, the exact way back."""

from __future__ import annotations

import copy
import pickle

import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import FAMILIES, GATES, NATIVE, assert_same, build, choices, fill, patched
from torch import nn

import hf_relpos
from hf_relpos import ClippedBias, RelPosConfig, Shaw, T5Bias, is_patched, patch_model, unpatch_model
from hf_relpos.modeling.attention import relpos_of


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_unpatching_after_training_keeps_the_trained_pretrained_weights(family, native):
    stock = build(family)
    names, original = list(stock.state_dict()), copy.deepcopy(stock.state_dict())
    model = patched(family, "sum", native, "head")
    tiny.train(model, family)
    trained = copy.deepcopy(model.state_dict())
    unpatch_model(model)
    assert list(model.state_dict()) == names
    moved = 0
    for name, tensor in model.state_dict().items():
        # A dropped table was no parameter, so it comes back as it was pretrained.
        assert torch.equal(tensor, trained.get(name, original[name])), name
        moved += not torch.equal(tensor, original[name])
    assert moved > len(names) / 2
    stock.load_state_dict(model.state_dict())
    batch = tiny.inputs(family)
    assert torch.equal(tiny.logits(model, batch), tiny.logits(stock, batch))


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_unpatching_after_a_change_of_dtype_gives_one_dtype(family, native):
    model = unpatch_model(patched(family, "sum", native, "token").to(torch.bfloat16))
    stock = build(family).to(torch.bfloat16)
    for name, tensor in stock.state_dict().items():
        assert model.state_dict()[name].dtype == torch.bfloat16, name
        assert torch.equal(model.state_dict()[name], tensor), name
    batch = tiny.inputs(family)
    assert torch.equal(tiny.logits(model, batch), tiny.logits(stock, batch))


def test_patching_again_after_unpatching_acts_like_the_first_patch():
    model = build("bert")
    for _ in range(2):
        fill(patch_model(model, choices("sum")))
        first = tiny.logits(model, tiny.inputs("bert"))
        assert torch.equal(first, tiny.logits(patched("bert", "sum"), tiny.inputs("bert")))
        unpatch_model(model)


@pytest.mark.core
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_another_model_of_the_same_class_is_never_affected(family, native):
    """Not one made before the patch, not one made after it, and not its config."""
    earlier, batch = build(family), tiny.inputs(family)
    before, logits = tiny.snapshot(earlier), tiny.logits(earlier, batch)
    model = patched(family, "sum", native, "token", share_layers=True)
    later = build(family)
    for other in (earlier, later):
        assert_same(before, tiny.snapshot(other))
        assert torch.equal(tiny.logits(other, batch), logits)
        assert not is_patched(other)
    unpatch_model(model)
    assert_same(before, tiny.snapshot(earlier))
    assert nn.Embedding.forward is torch.nn.modules.sparse.Embedding.forward
    assert type(earlier.get_input_embeddings()).__module__.startswith(("torch.", "transformers."))


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_keeps_the_object_its_class_as_a_base_and_its_parameters(family):
    model = build(family)
    base, state, config = type(model), dict(model.named_parameters()), model.config
    assert patch_model(model, Shaw(4)) is model
    assert type(model).__name__ == f"RelPos{base.__name__}"
    assert isinstance(model, base)
    assert type(config) is base.config_class
    config = model.config
    assert type(config).__name__ == f"RelPos{base.config_class.__name__}"
    assert config.model_type == f"relpos-{base.config_class.model_type}"
    assert config.relpos["schemes"][0]["max_distance"] == 4
    assert config.relpos["version"] == hf_relpos.__version__
    now = dict(model.named_parameters())
    for name, parameter in state.items():
        assert now[name] is parameter
    assert {name for name in now if name not in state} == {name for name in now if "relpos" in name}
    assert is_patched(model)
    assert "relpos" in repr(model)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_added_parameters_take_over_the_dtype_and_mode_and_are_trainable(family, native):
    model = build(family, dtype=torch.bfloat16).train()
    patch_model(model, choices("sum", native, "token"))
    for name, parameter in tiny.added(model).items():
        assert parameter.dtype == torch.bfloat16, name
        assert parameter.requires_grad, name
    assert all(module.training for module in model.modules())


@pairs(family=FAMILIES, native=NATIVE, gate=GATES)
def test_dropped_tables_are_gone_from_the_parameters_and_kept_ones_keep_their_name(family, native, gate):
    absolute = {"gpt2": "wpe.weight", "bart": "embed_positions.weight"}.get(family, "position_embeddings.weight")
    table = absolute if family in tiny.ABSOLUTE else "relative_attention_bias.weight"
    stock = [name for name in build(family).state_dict() if name.endswith(table)]
    model = patched(family, "shaw", native, gate)
    assert stock
    now = [name for name in model.state_dict() if name.endswith(table)]
    assert now == ([] if native == "drop" else stock)
    assert model.config.relpos["native"] == native


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_layers_stay_shared_after_a_deep_copy_and_a_change_of_dtype(family):
    model = patched(family, "sum", "gate", "head", share_layers=True)
    stacks = 2 if family in tiny.ENCODER_DECODERS else 1
    single = patched(family, "sum", "gate", "head")
    assert len([n for n in tiny.added(model) if "bucket_table" in n]) == stacks
    assert len([n for n in tiny.added(single) if "bucket_table" in n]) == stacks * tiny.LAYERS
    for other in (copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16), model.to(torch.float64)):
        assert len([n for n in tiny.added(other) if "bucket_table" in n]) == stacks
        # Every layer of a stack asks the one that is shared.
        calls = []
        for name, module in other.named_modules():
            if name.endswith("relpos"):
                module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        tiny.logits(other, tiny.inputs(family))
        assert len(calls) == stacks * tiny.LAYERS


def stacks_asked(model: nn.Module) -> set[str]:
    """The paths of the modules whose `relpos` the self-attentions of a model use; None for one outside it."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {paths.get(id(relpos_of(attention))) for _, attention in tiny.self_attentions(model)}


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_a_copied_layer_uses_the_shared_tables_of_its_model(family, tmp_path):
    """Depth up-scaling: deep copies of single layers are appended."""
    model = patched(family, "sum", "gate", "token", share_layers=True)
    shared = stacks_asked(model)
    names = {name for name in tiny.added(model) if "relpos_gate" not in name}
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList) and all(any(tiny.self_attentions(layer)) for layer in module):
            layer = copy.deepcopy(module[1])
            for part in layer.modules():
                if hasattr(part, "layer_idx"):
                    part.layer_idx = tiny.LAYERS
            module.append(layer)
    for part in model.modules():
        for name in ("num_hidden_layers", "num_decoder_layers", "decoder_layers"):  # T5's stacks have their own configs
            if isinstance(part, transformers.PreTrainedModel) and hasattr(part.config, name):
                setattr(part.config, name, tiny.LAYERS + 1)
    assert stacks_asked(model) == shared
    assert {name for name in tiny.added(model) if "relpos_gate" not in name} == names
    tiny.train(model, family)
    batch = tiny.inputs(family)
    logits = tiny.logits(model, batch)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(tiny.logits(loaded, batch), logits)
    twin = copy.deepcopy(model)
    assert stacks_asked(twin) == shared
    assert not any("_relpos_stack" in vars(module) for module in unpatch_model(model).modules())


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("first", ["layers", "model"])
def test_a_copy_shares_its_own_tables_in_whatever_order_it_is_made(first, way, tmp_path):
    """A layer may be met before the model it belongs to."""
    model = patched("bert", "sum", share_layers=True)
    whole = nn.ModuleDict({"layers": model.bert.encoder.layer, "model": model})
    whole = nn.ModuleDict({first: whole[first], **whole})
    if way == "deepcopy":
        twin = copy.deepcopy(copy.deepcopy(whole))
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(copy.deepcopy(whole)))
    else:
        torch.save(whole, tmp_path / "whole.pt")
        twin = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert stacks_asked(twin["model"]) == {"bert.relpos"}
    batch = tiny.inputs("bert")
    fill(model, seed=7)
    fill(twin["model"], seed=7)
    assert torch.equal(tiny.logits(twin["model"], batch), tiny.logits(model, batch))


@pytest.mark.core
@pytest.mark.parametrize("implementation", ["eager", "sdpa", {"": "sdpa"}])
@pytest.mark.parametrize("family", FAMILIES)
def test_set_attn_implementation_cannot_switch_relative_positions_off(family, implementation):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    before = tiny.logits(model, batch)
    model.set_attn_implementation(implementation)
    assert torch.equal(tiny.logits(model, batch), before)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_set_attn_implementation_on_an_inner_model_cannot_switch_relative_positions_off(family, implementation):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    before = tiny.logits(model, batch)
    inner = [module for _, module in model.named_modules() if isinstance(module, transformers.PreTrainedModel)]
    assert len(inner) > 1
    for module in inner[1:]:
        module.set_attn_implementation(implementation)
        assert torch.equal(tiny.logits(model, batch), before), type(module).__name__


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_patching_a_model_of_any_attention_implementation_gives_the_same_logits(family, implementation):
    model = build(family)
    model.set_attn_implementation(implementation)
    fill(patch_model(model, choices("sum")))
    batch = tiny.inputs(family)
    assert torch.equal(tiny.logits(model, batch), tiny.logits(patched(family, "sum"), batch))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_assigning_the_config_field_cannot_switch_relative_positions_off(implementation):
    model, batch = patched("bert", "sum"), tiny.inputs("bert")
    before = tiny.logits(model, batch)
    model.config._attn_implementation = implementation
    assert torch.equal(tiny.logits(model, batch), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_runs_and_is_close(family):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    exact = tiny.real_logits(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        low = tiny.real_logits(model, batch).float()
    assert ((low - exact).norm() / exact.norm()).item() < 0.1


@pytest.mark.parametrize("relpos", ["shaw", "t5", "clipped", Shaw(3), T5Bias(), ClippedBias(8), ["shaw", T5Bias()],
                                    RelPosConfig("shaw"), {"schemes": [{"type": "shaw"}]}])  # fmt: skip
def test_every_shorthand_for_the_choices_is_taken(relpos):
    model = patch_model(build("bert"), relpos)
    assert model.config.relpos == RelPosConfig.of(relpos).to_dict()
    assert tiny.added(model)


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_what_must_stay_in_one_piece_on_a_device_is_called_by_its_name(family):
    model = build(family)
    before = set(model._no_split_modules)

    def unsplit() -> set[str]:
        names = {type(module).__name__ for module in model.modules()}
        assert set(model._no_split_modules) <= names
        return set(model._no_split_modules)

    unsplit()
    patch_model(model, "shaw")
    assert len(unsplit()) == len(before)
    loaded = type(model)(model.config)
    assert set(loaded._no_split_modules) == set(model._no_split_modules)
    unpatch_model(model)
    assert unsplit() == before
