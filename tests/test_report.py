"""The report and the repr say what was done, and what they say is true."""

from __future__ import annotations

import pytest
import tiny
import transformers
from tiny import ENCODER_DECODERS, FAMILIES, GATES, NATIVE, SCHEMES, build, choices, few, patched

import hf_relpos
from hf_relpos import (
    ClippedBias,
    PatchReport,
    RelPosConfig,
    Shaw,
    T5Bias,
    patch_model,
    patch_report,
    patching,
    unpatch_model,
)


@few("bert", "t5")
def test_report_counts_layers_and_parameters_as_they_are(family, scheme, native, gate):
    stock = build(family)
    total = sum(parameter.numel() for parameter in stock.parameters())
    native_tables = sum(
        parameter.numel()
        for name, parameter in stock.named_parameters()
        if "position_embeddings" in name or "relative_attention_bias" in name
    )
    model = patch_model(stock, choices(scheme, native, gate))
    report = patch_report(model)
    added = sum(parameter.numel() for parameter in tiny.added(model).values())
    stacks = {"encoder": 2, "decoder": 2} if family == "t5" else {"bert": 2}
    assert isinstance(report, PatchReport)
    assert report.layers == stacks
    assert report.num_layers == sum(stacks.values())
    assert report.added == added
    assert report.total == total + added - (native_tables if native == "drop" else 0)
    assert report.config == choices(scheme, native, gate)
    assert report.model == type(model).__name__
    assert report.base == type(build(family)).__name__


@pytest.mark.core
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("family", FAMILIES)
def test_printed_report_names_everything_one_wants_to_know(family, native):
    model = patched(family, "sum", native, "token", window=5, engine="blockwise")
    text = str(patch_report(model))
    assert repr(patch_report(model)) == text  # what a notebook shows
    layers = 4 if family in ENCODER_DECODERS else 2
    for word in (type(model).__name__, f"{layers} patched", "Shaw", "T5Bias", "ClippedBias", "token", "5 tokens",
                 "blockwise", f"{patch_report(model).added:,}"):  # fmt: skip
        assert word in text, word
    assert {"keep": "kept", "gate": "gated", "drop": "dropped"}[native] in text
    if family in tiny.ABSOLUTE and native != "drop":
        assert "16" in text


@pytest.mark.parametrize("family", FAMILIES)
def test_report_on_some_layers_and_shared_ones(family):
    report = patch_report(patched(family, layers=[1], share_layers=True))
    assert set(report.layers.values()) == {1}
    assert "shared" in str(report)


@pytest.mark.parametrize("family", FAMILIES)
def test_report_is_the_same_after_a_reload(family, tmp_path):
    model = patched(family, "sum", "drop", "head")
    model.save_pretrained(tmp_path)
    twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    assert patch_report(twin) == patch_report(model)
    assert str(patch_report(twin)) == str(patch_report(model))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("native", NATIVE)
def test_number_of_added_parameters_is_what_the_documentation_says(native, gate):
    """2k + 1 vectors per table; one number per head and offset, or bucket; the gates."""
    heads, dim, layers = tiny.HEADS, tiny.HEAD_DIM, tiny.LAYERS
    per_layer = {
        "shaw": 2 * 7 * dim,
        "shaw-rank": 2 * (7 * 2 + 2 * dim),
        "shaw-per-head": 2 * heads * 5 * dim,
        "shaw-key": 9 * dim,
        "shaw-value": 7 * dim,
        "t5": 8 * heads,
        "clipped": 11 * heads,
        "alibi": 0,
        "alibi-learned": heads,
        "key-query": 7 * dim,
        "rotary": 0,
        "convolution": heads * (3 * dim + 1),
        "sum-of-kinds": heads + heads * (5 * dim + 1),
        "sum": 2 * heads * (5 * 3 + 3 * dim) + 8 * heads + 7 * heads,
    }
    gates = {"none": 0, "head": heads, "token": heads * dim + heads}[gate]
    for scheme in SCHEMES:
        report = patch_report(patched("bert", scheme, native, gate))
        gated = 0 if scheme in ("rotary", "convolution") else gates  # there are no terms to gate
        assert report.added == layers * (per_layer[scheme] + gated) + (native == "gate"), scheme


def test_repr_shows_schemes_gates_and_engine():
    text = repr(patched("bert", "sum", "gate", "token", window=4, engine="eager"))
    for word in ("RelPosBertForMaskedLM", "RelPosLayer", "Shaw", "T5Bias", "ClippedBias",
                 f"TokenGate({tiny.HEADS}x{tiny.HEAD_DIM})", "relpos_gate", "engine='eager'", "window=4"):  # fmt: skip
        assert word in text, word


def test_an_editor_completes_what_is_for_users_and_nothing_else():
    offered = {name for name in dir(hf_relpos) if not name.startswith(("__", "RelPos"))}
    assert offered == {name for name in hf_relpos.__all__ if not name.startswith(("__", "RelPos"))} | {"nn"}
    assert all(hasattr(hf_relpos, name) for name in dir(hf_relpos))


def test_report_goes_with_the_patch():
    model = patched("bert")
    assert patch_report(model).added > 0
    unpatch_model(model)
    with pytest.raises(ValueError, match="not patched"):
        patch_report(model)


@pytest.fixture
def warnings_of(monkeypatch):
    """What the patch warns of, each time (Transformers says it once per process)."""
    said = []
    monkeypatch.setattr(patching.logger, "warning_once", said.append)
    return lambda model, relpos: (said.clear(), patch_model(model, relpos), "\n".join(said))[-1]


def test_short_clip_distance_is_warned_of_once(warnings_of):
    """Below half of the trained length far tokens become indistinguishable."""
    text = warnings_of(build("bert", max_position_embeddings=64), ClippedBias(max_distance=31))
    assert "31" in text
    assert "64" in text
    assert "32" in text
    assert warnings_of(build("bert", max_position_embeddings=64), ClippedBias(max_distance=32)) == ""
    assert warnings_of(build("gpt2", n_positions=512), ClippedBias()) != ""
    assert warnings_of(build("gpt2", n_positions=256), ClippedBias()) == ""
    assert warnings_of(build("t5"), ClippedBias(max_distance=2)) == ""
    assert warnings_of(build("bert", max_position_embeddings=64), Shaw(4)) == ""
    assert "31" in warnings_of(build("bert", max_position_embeddings=64), RelPosConfig([T5Bias(), ClippedBias(31)]))


def test_default_clip_distance_is_128():
    assert ClippedBias().max_distance == 128
