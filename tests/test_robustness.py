"""States a model gets into in real use: loaded and unpatched, its config shared or edited, traced, wrapped."""

from __future__ import annotations

import copy
import gc

import pytest
import tiny
import torch
import transformers
from tiny import build, fill, inputs, logits, patched

import hf_relpos
from hf_relpos import PatchStateError, RelPosConfig, Shaw, T5Bias, UnsupportedModelError, patch_model, unpatch_model
from hf_relpos.engines import attend
from hf_relpos.masks import AttentionMask
from hf_relpos.nn import RelativeMultiheadAttention
from hf_relpos.schemes import AttentionGeometry
from hf_relpos.schemes.t5 import bucket_of
from hf_relpos.terms import RelativeTerms

FAMILIES = tiny.FAMILIES


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_computes_what_the_plain_one_computed_once_unpatched(family, tmp_path):
    plain = build(family)
    expected = logits(plain, inputs(family))
    model = patch_model(copy.deepcopy(plain), Shaw(4))
    model.save_pretrained(tmp_path)
    loaded = unpatch_model(type(model).from_pretrained(tmp_path).eval())
    assert loaded.config._attn_implementation == plain.config._attn_implementation
    assert torch.equal(logits(tiny.mended(loaded), inputs(family)), expected)


@pytest.mark.core
@pytest.mark.parametrize("native", ["keep", "drop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_another_model_with_the_same_config_object_is_never_affected(family, native, tmp_path):
    first = build(family)
    second = type(first)(first.config).eval()
    assert second.config is first.config
    before, values = logits(second, inputs(family)), second.config.to_dict()
    fill(patch_model(first, RelPosConfig(Shaw(4), native=native)))
    assert torch.equal(logits(second, inputs(family)), before)
    assert second.config.to_dict() == values
    patch_model(second, RelPosConfig(Shaw(4)))
    fill(second)
    acting = logits(second, inputs(family))
    unpatch_model(first)
    assert torch.equal(logits(second, inputs(family)), acting)


def test_a_config_of_a_class_of_its_own_is_refused():
    class MyConfig(transformers.BertConfig):
        pass

    model = transformers.BertModel(MyConfig(**tiny.config_of("bert").to_dict()))
    with pytest.raises(UnsupportedModelError, match="MyConfig for its config, but must have a BertConfig itself"):
        patch_model(model, "shaw")
    assert type(model) is transformers.BertModel


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "umt5"])
def test_a_plain_class_with_a_patched_config_is_refused_instead_of_losing_its_positions(family, tmp_path):
    model = patched(family)
    plain = type(build(family))(copy.deepcopy(model.config)).eval()
    with pytest.raises(PatchStateError, match="has no relative positions: its model was built by a class"):
        logits(plain, inputs(family))


def test_a_stock_t5_keeps_its_bias_under_our_attention():
    plain = build("t5")
    expected = logits(plain, inputs("t5"))
    patched("t5")  # registers the attention
    plain.set_attn_implementation("relpos")
    torch.testing.assert_close(logits(plain, inputs("t5")), expected, rtol=0, atol=1e-4)


def test_an_edited_config_is_noticed_before_it_is_reported_or_saved(tmp_path):
    model = patch_model(build("bert"), Shaw(4))
    model.config.relpos = RelPosConfig(Shaw(4), window=1)
    for use in (hf_relpos.patch_report, lambda model: model.save_pretrained(tmp_path / "model")):
        with pytest.raises(PatchStateError, match="the config was edited after the model was patched"):
            use(model)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("native", ["gate", "drop"])
@pytest.mark.parametrize(
    ("family", "path"), [("bert", "bert.embeddings.position_embeddings"), ("gpt2", "transformer.wpe")]
)
def test_a_native_table_replaced_after_the_patch_is_noticed_before_it_is_reported_or_saved(
    family, path, native, tmp_path
):
    model = patched(family, native=native)
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, torch.nn.Embedding(tiny.POSITIONS, tiny.HIDDEN))
    for use in (hf_relpos.patch_report, lambda model: model.save_pretrained(tmp_path / "model")):
        with pytest.raises(
            PatchStateError, match=f"native='{native}', .* at '{path}' is not .*: it was put there after"
        ):
            use(model)
    assert not (tmp_path / "model").exists()


def test_a_native_bias_replaced_after_the_patch_is_noticed():
    model = patched("t5")
    attention = model.decoder.block[0].layer[0].SelfAttention
    attention.relative_attention_bias = torch.nn.Embedding(8, tiny.HEADS)
    with pytest.raises(PatchStateError, match=r"at 'decoder.block.0.layer.0.SelfAttention.relative_attention_bias'"):
        hf_relpos.patch_report(model)


def test_a_native_table_replaced_where_it_was_kept_is_the_users_own_affair(tmp_path):
    model = patched("bert", native="keep")
    model.bert.embeddings.position_embeddings = torch.nn.Embedding(tiny.POSITIONS, tiny.HIDDEN)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, inputs("bert")), logits(model, inputs("bert")))


def test_a_layer_that_shares_with_another_model_is_noticed_before_it_is_saved(tmp_path):
    model, other = (patched("gpt2", share_layers=True) for _ in range(2))
    model.transformer.h[1] = copy.deepcopy(other.transformer.h[1])
    with pytest.raises(PatchStateError, match=r"of another model, at 'transformer.h.1.attn'"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    other.save_pretrained(tmp_path / "other")


@pytest.mark.parametrize(
    "other", [RelPosConfig(T5Bias()), RelPosConfig(Shaw(4), layers=[0]), RelPosConfig(Shaw(4), gate="none")]
)
def test_loading_with_other_relative_positions_does_not_drop_the_trained_ones(other, tmp_path):
    model = patch_model(build("bert"), Shaw(4))
    model.save_pretrained(tmp_path)
    config = type(model.config).from_pretrained(tmp_path)
    config.relpos = other
    with pytest.raises(PatchStateError, match="made with other relative positions"):
        type(model).from_pretrained(tmp_path, config=config)


def test_a_model_with_quantised_weights_alone_in_a_layer_gets_floating_point_tables():
    model = build("t5")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.data.round().to(torch.int8)
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
    patch_model(model, Shaw(4))
    assert all(p.is_floating_point() for n, p in model.named_parameters() if "relpos" in n)


def test_unpatching_is_refused_while_something_else_holds_the_pieces():
    peft = pytest.importorskip("peft")
    accelerate = pytest.importorskip("accelerate")
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["relpos"])
    adapted = peft.get_peft_model(patch_model(build("bert"), Shaw(4)), config)
    with pytest.raises(PatchStateError, match="are wrapped"):
        unpatch_model(adapted.base_model.model)
    hooked = accelerate.cpu_offload(patch_model(build("bert"), Shaw(4)), torch.device("cpu"))
    with pytest.raises(UnsupportedModelError, match=r"Unpatch the model first. Or save it .*`del model.*\.forward`"):
        unpatch_model(hooked)


def test_copies_made_for_data_parallelism_do_not_use_the_originals_tables():
    model = patch_model(build("bert"), RelPosConfig(Shaw(4), share_layers=True))
    attention = next(m for m in model.modules() if type(m).__name__ == "BertSelfAttention")
    attention._is_replica = True
    with pytest.raises(RuntimeError, match="DataParallel cannot run a model patched with share_layers=True"):
        logits(model, inputs("bert"))


class _Output(torch.nn.Module):
    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [9, 300])
def test_jit_trace_gives_the_same_numbers(length):
    attention = RelativeMultiheadAttention(8, 2).eval()
    x = torch.randn(1, length, 8)
    traced = torch.jit.trace(_Output(attention), x, check_trace=False)
    torch.testing.assert_close(traced(x), attention(x)[0])


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_of_a_model_with_a_padding_mask():
    model = patched("bert")
    batch = inputs("bert")
    arguments = (batch["input_ids"], batch["attention_mask"])

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(ids, attention_mask=mask)[0]

    traced = torch.jit.trace(Logits(), arguments, check_trace=False)
    torch.testing.assert_close(traced(*arguments), logits(model, dict(zip(batch, arguments, strict=False))))


@pytest.mark.parametrize(("engine", "length"), [("auto", 300), ("auto", 600), ("blockwise", 300)])
def test_functional_transforms_work_for_long_inputs(engine, length):
    x = torch.randn(1, 2, length, 4)
    terms = RelativeTerms(bias=torch.randn(2, 9))
    mask = AttentionMask(length, length)

    def total(states: torch.Tensor) -> torch.Tensor:
        return attend(states, states, states, terms, mask, scale=0.5, engine=engine)[0].square().sum()

    leaf = x.clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(torch.func.grad(total)(x), leaf.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacfwd"])
def test_what_a_scheme_keeps_is_not_of_a_transform_that_has_ended(transform):
    distance = 77 + len(transform)  # asked for by no one else, so that it is kept, or not, by this test
    scheme = T5Bias(num_buckets=22, max_distance=distance).build(AttentionGeometry(2, 4, causal=False))
    like, table = torch.zeros(1), torch.nn.init.normal_(scheme.bucket_table.weight)

    def first_use(factor):
        return (factor * scheme.tables(distance, like).bias).sum()

    getattr(torch.func, transform)(first_use)(torch.ones(2 if transform == "vmap" else ()))
    is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
    assert not [kept for kept in gc.get_objects() if isinstance(kept, torch.Tensor) and is_wrapper(kept)]
    buckets = bucket_of(torch.arange(-distance, distance + 1), 22, distance, causal=False)
    assert torch.equal(scheme.tables(distance, like).bias, table[:, buckets])


@pytest.mark.parametrize(("batch", "length"), [(0, 9), (0, 300), (2, 0)])
def test_empty_inputs_give_empty_outputs(batch, length):
    attention = RelativeMultiheadAttention(8, 2)
    assert attention(torch.zeros(batch, length, 8))[0].shape == (batch, length, 8)


def test_the_meta_device_gives_shapes():
    model = patch_model(build("bert"), Shaw(4)).to("meta")
    batch = {name: tensor.to("meta") for name, tensor in inputs("bert").items()}
    assert model(**batch)[0].device.type == "meta"


def test_an_inner_model_unpatched_alone_is_noticed_and_the_way_back_is_open(tmp_path):
    plain = build("bert")
    model = patch_model(copy.deepcopy(plain), Shaw(4))
    unpatch_model(model.base_model)
    for use in (hf_relpos.patch_report, lambda model: model.save_pretrained(tmp_path / "model")):
        with pytest.raises(PatchStateError, match="was unpatched alone"):
            use(model)
    assert type(unpatch_model(model)) is type(plain)
    assert torch.equal(logits(model, inputs("bert")), logits(plain, inputs("bert")))


def test_a_plain_model_is_not_told_to_look_inside():
    with pytest.raises(PatchStateError) as raised:
        unpatch_model(build("bert"))
    assert "one by one" not in str(raised.value)


def test_a_rank_that_saves_nothing_is_refused():
    assert Shaw(4, rank=8).rank == 8
    with pytest.raises(ValueError, match="`rank` is 9, but must be less than the 9 rows"):
        Shaw(4, rank=9)
