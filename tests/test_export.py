"""`torch.export`, ONNX and `torch.jit` are right at lengths they never saw; `torch.compile` breaks no graph."""

from __future__ import annotations

import pytest
import tiny
import torch
from pairwise import pairs
from tiny import assert_close, patched
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from transformers.integrations.executorch import register_dynamic_cache_export_support

from hf_relpos import ALiBi, RelPosConfig, Shaw, T5Bias, patch_model
from hf_relpos.names import ENGINE_NAMES

# Below and above the length recorded, and beyond where a choice by length would have chosen otherwise.
RECORDED, OTHERS = 8, (5, 8, 13, 70)
FAMILIES = ("bert", "gpt2")
# Compilers take their time, and as long again for each layer.
ONE_LAYER = {"bert": {"num_hidden_layers": 1}, "gpt2": {"n_layer": 1}, "t5": {"num_layers": 1}}
DIMS = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=1024)}

# Warnings of torch about its own exporters.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(torch|onnx|onnxscript|copyreg|test_export)"),
    pytest.mark.filterwarnings("ignore::FutureWarning:(torch|onnx|onnxscript|copyreg|test_export)"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Logits(nn.Module):
    """A model as function of two tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.more = {} if model.config.model_type == "relpos-bert" else {"use_cache": False}

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **self.more).logits


def arguments(family, length):
    batch = tiny.inputs(family, length)
    return batch["input_ids"], batch["attention_mask"]


def assert_right_at_other_lengths(run, model, family, lengths=OTHERS):
    for length in lengths:
        given = arguments(family, length)
        assert_close(run(*given), tiny.logits(model, tiny.inputs(family, length)))


def model_for(family, native="drop", **more):
    return patched(family, "sum", native, "token", config=ONE_LAYER[family], **more)


def exported(model, family, dims=DIMS):
    return torch.export.export(Logits(model), arguments(family, RECORDED), dynamic_shapes=(dims, dims))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_exported_program_is_right_at_other_lengths_and_as_onnx_model(family, tmp_path):
    model = model_for(family)
    program = exported(model, family)
    torch.export.save(program, tmp_path / "model.pt2")
    assert_right_at_other_lengths(torch.export.load(tmp_path / "model.pt2").module(), model, family, (*OTHERS, 600))
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    onnx = torch.onnx.export(program, (), dynamo=True, verbose=False, optimize=False)
    onnx.save(tmp_path / "model.onnx")
    assert_right_at_other_lengths(run_onnx(tmp_path / "model.onnx"), model, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_exported_program_is_right_with_absolute_positions_a_window_and_plain_layers(family):
    dims = {**DIMS, 1: torch.export.Dim("length", min=2, max=tiny.POSITIONS)}
    model = patched(family, "t5", "gate", "head", layers=[1], window=3)
    assert_right_at_other_lengths(exported(model, family, dims).module(), model, family, (5, 13))


class EncoderStates(nn.Module):
    """An encoder as function of two tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class DecoderLogits(nn.Module):
    """An encoder-decoder as function of three tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        return self.model(**batch, use_cache=False).logits


def test_exported_encoder_of_t5_is_right_at_other_lengths():
    model = EncoderStates(patched("t5", "sum", "drop", "token", cls="T5EncoderModel", config=ONE_LAYER["t5"]))
    program = torch.export.export(model, arguments("t5", RECORDED), dynamic_shapes=(DIMS, DIMS)).module()
    for length in OTHERS:
        given = arguments("t5", length)
        with torch.no_grad():
            assert_close(program(*given), model(*given))


def test_exported_encoder_decoder_is_right_at_other_lengths_of_both():
    model = DecoderLogits(patched("t5", "sum", "gate", "token", config=ONE_LAYER["t5"]))
    dims = (DIMS, DIMS, {0: DIMS[0], 1: torch.export.Dim("target", min=2, max=1024)})
    recorded = (*arguments("t5", RECORDED), tiny.tokens(3, 6))
    program = torch.export.export(model, recorded, dynamic_shapes=dims).module()
    for length, target in zip(OTHERS, (9, 6, 3, 40), strict=True):
        given = (*arguments("t5", length), tiny.tokens(3, target))
        with torch.no_grad():
            assert_close(program(*given), model(*given))


class NextLogits(nn.Module):
    """A decoder with a cache as function of new tokens, a mask over all of them, and what it has of the earlier."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, cache):
        given = {"input_ids": input_ids, "attention_mask": attention_mask, **tiny.caching(self.model, cache)}
        out = self.model(**given, use_cache=True)
        return out.logits, tiny.cache_of(out)


def next_arguments(model, past, new, pairs):
    """For new tokens after a past of some length; the last row is padded on the left. The mask may be one of pairs."""
    ids, mask = tiny.tokens(3, past + new), torch.ones(3, past + new, dtype=torch.long)
    mask[2, :2] = 0
    with torch.no_grad():
        cache = tiny.cache_of(model(ids[:, :past], attention_mask=mask[:, :past], use_cache=True))
    if pairs:
        earlier = torch.ones(past + new, past + new, dtype=torch.bool).tril()[past:]
        mask = mask[:, None, None].bool() & earlier
    return ids[:, past:], mask, cache


@pytest.mark.parametrize("pairs", [False, True])
def test_exported_decoder_with_a_cache_is_right_after_any_past(pairs):
    register_dynamic_cache_export_support()
    model = patched("gpt2", "sum", "gate", "token", config={**ONE_LAYER["gpt2"], "n_positions": 64})
    free = torch.export.Dim.DYNAMIC
    tokens, states = {0: free, 1: free}, [{0: free, 2: free}]
    masks = {0: free, 2: free, 3: free} if pairs else tokens
    step = NextLogits(model)
    program = torch.export.export(
        step, next_arguments(model, 5, 3, pairs), dynamic_shapes=(tokens, masks, [states, states])
    ).module()
    for past, new in ((5, 3), (9, 2), (3, 7), (20, 4)):
        with torch.no_grad():
            made, cache = program(*next_arguments(model, past, new, pairs))
            expected, _ = step(*next_arguments(model, past, new, pairs))
        assert_close(made, expected)
        assert cache.get_seq_length() == past + new


def onnx_session(path):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_onnx(path):
    session = onnx_session(path)
    names = [given.name for given in session.get_inputs()]

    def run(*given):
        return torch.tensor(session.run(None, dict(zip(names, (one.numpy() for one in given), strict=True)))[0])

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_model_from_the_older_onnx_exporter_is_right_at_other_lengths(family, tmp_path):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    model = model_for(family)
    names, path = ["input_ids", "attention_mask"], tmp_path / "model.onnx"
    torch.onnx.export(
        Logits(model), arguments(family, RECORDED), str(path), dynamo=False, input_names=names,
        output_names=["logits"], dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
    )  # fmt: skip
    assert_right_at_other_lengths(run_onnx(path), model, family)


@pytest.mark.core
@pairs(family=FAMILIES, native=tiny.NATIVE, apart=("family", "native"))
def test_traced_model_is_right_at_other_lengths(family, native):
    model = model_for(family, native)
    traced = torch.jit.trace(Logits(model), arguments(family, RECORDED), check_trace=False)
    assert_right_at_other_lengths(traced, model, family, (5, 8, 13))


@pytest.mark.core
@pytest.mark.parametrize("engine", sorted(set(ENGINE_NAMES) - {"auto", "eager"}))
def test_engine_that_cannot_be_exported_says_so_and_the_way_it_names_works(engine, tmp_path):
    model = model_for("bert", "gate", engine=engine)
    with pytest.raises(ValueError, match=f"The engine '{engine}' cannot be exported or traced"):
        exported(model, "bert")
    with pytest.raises(ValueError, match="Patch with engine='auto' or 'eager'"):
        torch.jit.trace(Logits(model), arguments("bert", RECORDED), check_trace=False)
    model.save_pretrained(tmp_path)
    config = type(model.config).from_pretrained(tmp_path)
    config.relpos = {**config.relpos, "engine": "eager"}
    loaded = type(model).from_pretrained(tmp_path, config=config).eval()
    traced = torch.jit.trace(Logits(loaded), arguments("bert", RECORDED), check_trace=False)
    assert_right_at_other_lengths(traced, model_for("bert", "gate"), "bert", (5, 13))


# torch.compile


def loss_of(model, family, length):
    """Outside the model: stock causal heads break the graph to warn about their loss."""
    batch = tiny.labelled(family, length)
    wanted = batch["labels"]
    if family in tiny.ENCODER_DECODERS:
        return model(**batch).loss
    more = {"use_cache": False} if family == "gpt2" else {}
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **more).logits
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def compiled(model, backend, dynamic=None):
    """The model compiled without a break allowed, and the counter of its graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, fullgraph=True, backend=counter, dynamic=dynamic), counter


@pytest.mark.slow
@pytest.mark.parametrize(("family", "backend"), [("bert", "aot_eager"), ("t5", "eager")])
def test_compiled_training_has_the_same_gradients_in_two_graphs_for_many_lengths(family, backend):
    model = patched(family, "shaw", "drop", "token", config=ONE_LAYER[family]).train()
    fast, counter = compiled(model, backend)
    # On both sides of every length that the choice of an engine depends on where nothing is compiled.
    for length in (9, 130, 250, 520, 1100):
        expected = gradients(model, loss_of(model, family, length))
        made = gradients(model, loss_of(fast, family, length))
        for name, gradient in expected.items():
            assert_close(made[name], gradient)
    assert counter.frame_count <= 2  # one for the first length, one for all


@pytest.mark.slow
def test_compiled_inference_has_the_same_logits_with_the_compiler_that_users_get():
    model = patched("bert", "t5", "drop", "head", config=ONE_LAYER["bert"])
    fast, counter = compiled(model, "inductor", dynamic=True)
    for length in (9, 12, 17):
        batch = tiny.inputs("bert", length)
        assert_close(tiny.logits(fast, batch), tiny.logits(model, batch))
    assert counter.frame_count <= 2  # the compiler may ask for a graph again
    traced, counter = compiled(model, "eager", dynamic=True)
    for length in (9, 12, 17):
        tiny.logits(traced, tiny.inputs("bert", length))
    assert counter.frame_count == 1


@pairs(
    family=FAMILIES,
    schemes=(
        "relative_key_query",
        "dynamic_convolution",
        ("rotary", ALiBi(learned=True)),
        (ALiBi(), T5Bias(8, 6), Shaw(3)),  # one table without end, and others
    ),
    apart=("family", "schemes"),
)
def test_schemes_that_go_by_the_length_are_right_at_others_too(family, schemes):
    stock = tiny.build(family, **ONE_LAYER[family])
    model = tiny.fill(patch_model(stock, RelPosConfig(schemes, native="drop")))
    assert_right_at_other_lengths(exported(model, family).module(), model, family)
    traced = torch.jit.trace(Logits(model), arguments(family, RECORDED), check_trace=False)
    assert_right_at_other_lengths(traced, model, family)
