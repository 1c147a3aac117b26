"""Relative vectors as BERT had them: the formula, and checkpoints that Transformers no longer opens as meant."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import by_formula
import pytest
import reference
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM

from hf_relpos import (
    PatchStateError,
    RelativeKeyQuery,
    RelPosConfig,
    Shaw,
    UnsupportedModelError,
    load_relative_key,
    patch_report,
)
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import AttentionGeometry

KINDS = ("relative_key", "relative_key_query")


def formula(vectors: Tensor, kind: str) -> by_formula.Formula:
    """As Transformers 4 had it: ``vectors`` ``[2 * max_position - 1, head_dim]``, by query less key, in the scale."""

    def attend(query, key, value, offsets, hidden, scale):
        each = vectors[len(vectors) // 2 - offsets]
        scores = query @ key.mT + torch.einsum("bhld,lrd->bhlr", query, each)
        if kind == "relative_key_query":
            scores = scores + torch.einsum("bhrd,lrd->bhlr", key, each)
        return by_formula.weights_of(scores * scale, hidden) @ value

    return attend


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("gate", ["none", "head", "token"])
@pytest.mark.parametrize("engine", ["auto", "eager", "blockwise"])
def test_the_layer_is_the_formula_with_its_gradients(causal: bool, gate: str, engine: str):
    geometry = AttentionGeometry(num_heads=3, head_dim=4, causal=causal)
    config = RelPosConfig(RelativeKeyQuery(max_distance=3), gate=gate, engine=engine)
    tensors = by_formula.states(geometry)
    tensors["schemes.0.vector_table.weight"] = torch.randn(1, 7, 4, dtype=torch.float64)
    if gate != "none":
        tensors["gate.weight"] = torch.randn(3, 4, dtype=torch.float64)[:, slice(None) if gate == "token" else 0]
    if gate == "token":
        tensors["gate.bias"] = torch.randn(3, dtype=torch.float64)

    def expected(leaves: dict[str, Tensor]) -> Tensor:
        query, key = leaves["query"], leaves["key"]
        offsets = torch.arange(9) - torch.arange(9)[:, None]
        each = leaves["schemes.0.vector_table.weight"][0][offsets.clamp(-3, 3) + 3]
        relative = torch.einsum("bhld,lrd->bhlr", query, each) + torch.einsum("bhrd,lrd->bhlr", key, each)
        if gate == "head":
            relative = relative * leaves["gate.weight"][:, None, None]
        if gate == "token":
            logits = torch.einsum("bhld,hd->bhl", query, leaves["gate.weight"]) + leaves["gate.bias"][:, None]
            relative = relative * 2 * torch.sigmoid(logits)[..., None]
        hidden = by_formula.causal_of(geometry, offsets)
        return by_formula.weights_of(0.5 * (query @ key.mT + relative), hidden) @ leaves["value"]

    mask = AttentionMask(9, 9, causal=causal)
    reference.assert_all_close(
        reference.output_and_gradients(
            lambda leaves: by_formula.layer_output(config, geometry, leaves, mask, 0.5), tensors
        ),
        reference.output_and_gradients(expected, tensors),
        1e-10,
    )


def legacy_folder(folder: Path, kind: str, family: str = "bert") -> list[Tensor]:
    """A checkpoint as Transformers 4 wrote it; returns the vectors of each layer."""
    stock = tiny.build(family, dtype=torch.float64)
    stock.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "position_embedding_type": kind}))
    weights = load_file(folder / "model.safetensors")
    vectors = []
    for path, _ in tiny.self_attentions(stock):
        vectors.append(torch.randn(2 * tiny.POSITIONS - 1, tiny.HEAD_DIM, dtype=torch.float64))
        weights[f"{path}.distance_embedding.weight"] = vectors[-1]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return vectors


@pytest.mark.core
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, BertForMaskedLM])
def test_a_checkpoint_of_transformers_4_computes_what_it_did(tmp_path, kind: str, auto_class: Any):
    vectors = legacy_folder(tmp_path / "legacy", kind)
    model = load_relative_key(tmp_path / "legacy", auto_class)
    expected = by_formula.stock_model("bert", lambda layer: formula(vectors[layer], kind))
    batch = tiny.inputs("bert", tiny.POSITIONS)
    wanted = tiny.real_logits(expected, batch)
    tiny.assert_close(tiny.real_logits(model, batch), wanted, 1e-10)
    report = patch_report(model)
    k = tiny.POSITIONS - 1
    scheme = Shaw(k, value=False) if kind == "relative_key" else RelativeKeyQuery(k)
    assert report.config == RelPosConfig(scheme, native="drop", gate="none")

    model.save_pretrained(tmp_path / "patched")
    assert "position_embedding_type" not in json.loads((tmp_path / "patched" / "config.json").read_text())
    again, loading = AutoModelForMaskedLM.from_pretrained(tmp_path / "patched", output_loading_info=True)
    assert not any(loading[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tiny.assert_close(tiny.real_logits(again, batch), wanted, 1e-10)


@pytest.mark.core
def test_a_decoder_generates_with_a_cache_as_without(tmp_path):
    legacy_folder(tmp_path, "relative_key_query", "bert-decoder")
    model = load_relative_key(tmp_path, tiny.transformers.AutoModelForCausalLM, is_decoder=True)
    ids = tiny.tokens(2, 5)
    with torch.no_grad():
        outputs = [model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*outputs)


def test_a_dtype_is_passed_on_and_the_body_alone_loads(tmp_path):
    vectors = legacy_folder(tmp_path, "relative_key")
    model = load_relative_key(tmp_path, AutoModel, dtype=torch.bfloat16)
    table = model.encoder.layer[0].attention.self.relpos.schemes[0].key_table.weight
    assert torch.equal(table[0], vectors[0].flip(0).bfloat16())
    assert load_relative_key(tmp_path, AutoModel, hidden_dropout_prob=0.25).config.hidden_dropout_prob == 0.25


@pytest.mark.core
def test_what_is_no_such_checkpoint_is_refused_in_words(tmp_path):
    tiny.build("bert").save_pretrained(tmp_path / "absolute")
    with pytest.raises(PatchStateError, match=r"'absolute', but must say 'relative_key'"):
        load_relative_key(tmp_path / "absolute")

    legacy_folder(tmp_path / "lost", "relative_key")
    weights = load_file(tmp_path / "lost" / "model.safetensors")
    (lost,) = [name for name in weights if "layer.1.attention.self.distance" in name]
    del weights[lost]
    save_file(weights, tmp_path / "lost" / "model.safetensors", {"format": "pt"})
    with pytest.raises(PatchStateError, match=r"has no 'encoder\.layer\.1\.attention\.self\.distance_embedding"):
        load_relative_key(tmp_path / "lost")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tiny.transformers.ElectraConfig(position_embedding_type="relative_key")
    config.save_pretrained(tmp_path / "electra")
    with pytest.raises(UnsupportedModelError, match=r"ElectraModel.*no supported family.*Bert"):
        load_relative_key(tmp_path / "electra")
