"""Dynamic convolution: the weighted sum written out token by token, with all that hides a token, and a shut start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import by_formula
import pytest
import reference
import tiny
import torch
from torch import Tensor
from transformers import cache_utils

from hf_relpos import DynamicConvolution, RelPosConfig, RelPosConfigError, Shaw, patch_model, patch_report
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes import AttentionCall, AttentionGeometry

HEADS, DIM = 2, 4


def convolution(
    query: Tensor, value: Tensor, kernel: Tensor, gate: Tensor, causal: bool, sees: Callable[[int, int, int], bool]
) -> Tensor:
    """The branch, token by token; ``sees(batch, query, key)`` says what a mask leaves."""
    batch, heads, queries, _ = query.shape
    keys, size = value.shape[2], kernel.shape[1]
    left = size - 1 if causal else size // 2
    sequences = []
    for b in range(batch):
        rows = []
        for i in range(queries):
            at = i + keys - queries
            for h in range(heads):
                exponentials = [(query[b, h, i] @ kernel[h, n]).exp() for n in range(size)]
                total = torch.zeros_like(value[b, 0, 0])
                for n, exponential in enumerate(exponentials):
                    j = at + n - left
                    if 0 <= j < keys and sees(b, i, j):
                        total = total + exponential / sum(exponentials) * value[b, h, j]
                rows.append(gate[h] * total)
        sequences.append(torch.stack(rows).view(queries, heads, -1).transpose(0, 1))
    return torch.stack(sequences)


def sees_all(b: int, i: int, j: int) -> bool:
    return True


PADDING = torch.tensor([[True] * 9, [False] * 2 + [True] * 5 + [False] * 2])
SEGMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
DENSE = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(3)) > 0.4

# What hides tokens: as the mask has it, and as a pair of positions.
HIDING: dict[str, tuple[dict[str, Any], Callable[[int, int, int], bool]]] = {
    "nothing": ({}, sees_all),
    "padding": ({"padding": PADDING}, lambda b, i, j: bool(PADDING[b, j])),
    "window": ({"window": 1}, lambda b, i, j: abs(i - j) <= 1),
    "packed": (
        {"pattern": lambda query, key: (SEGMENTS[query] == SEGMENTS[key])[None, None]},
        lambda b, i, j: bool(SEGMENTS[i] == SEGMENTS[j]),
    ),
    "dense": ({"dense": DENSE}, lambda b, i, j: bool(DENSE[b, 0, i, j])),
    "dense float": (
        {"dense": torch.where(DENSE, 0.5, -math.inf)},
        lambda b, i, j: bool(DENSE[b, 0, i, j]),
    ),
    "dense, a row for all": ({"dense": DENSE[:, :, :1]}, lambda b, i, j: bool(DENSE[b, 0, 0, j])),
    "causality": ({"causal": True}, lambda b, i, j: j <= i),
}


@pytest.mark.core
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize(("causal", "size"), [(False, 5), (True, 5), (True, 4), (False, 1), (True, 12)])
def test_the_branch_is_the_formula_with_its_gradients(hiding: str, causal: bool, size: int):
    options, sees = HIDING[hiding]
    mask = AttentionMask(9, 9, **{"causal": causal, **options})
    scheme = DynamicConvolution(size).build(AttentionGeometry(HEADS, DIM, causal)).double()
    tensors = by_formula.states(AttentionGeometry(HEADS, DIM, causal))
    tensors["kernel"] = torch.randn(HEADS, size, DIM, dtype=torch.float64)
    tensors["gate"] = torch.tensor([0.7, -1.3], dtype=torch.float64)

    def ours(leaves: dict[str, Tensor]) -> Tensor:
        parameters = {name: leaves[name] for name in ("kernel", "gate")}
        call = AttentionCall(leaves["query"], leaves["key"], leaves["value"], mask)
        branch = torch.func.functional_call(scheme, parameters, (call,)).branch
        return branch + 0 * leaves["key"]

    def expected(leaves: dict[str, Tensor]) -> Tensor:
        branch = convolution(leaves["query"], leaves["value"], leaves["kernel"], leaves["gate"], causal, sees)
        return branch + 0 * leaves["key"]

    reference.assert_all_close(
        reference.output_and_gradients(ours, tensors), reference.output_and_gradients(expected, tensors), 1e-10
    )


@pytest.mark.core
@pytest.mark.parametrize("first_layers", [None, 1])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_model_adds_the_branch_to_attention_in_its_first_layers(family: str, first_layers: int | None):
    stock = tiny.build(family, dtype=torch.float64)
    model = tiny.fill(patch_model(stock, RelPosConfig(DynamicConvolution(3, first_layers), native="drop")))
    layers = [attention.relpos.schemes[0] for _, attention in tiny.self_attentions(model)]

    def formula(number: int) -> by_formula.Formula:
        def attend(query, key, value, offsets, hidden, scale):
            output = by_formula.weights_of(query @ key.mT * scale, hidden) @ value
            if first_layers is not None and number >= first_layers:
                return output
            hidden = hidden.expand(query.shape[0], 1, query.shape[2], key.shape[2])
            branch = convolution(
                query,
                value,
                layers[number].kernel,
                layers[number].gate,
                family == "gpt2",
                lambda b, i, j: not hidden[b, 0, i, j],
            )
            return output + branch

        return attend

    batch = tiny.inputs(family)
    expected = by_formula.stock_model(family, formula)
    tiny.assert_close(tiny.real_logits(model, batch), tiny.real_logits(expected, batch), 1e-10)


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_a_fresh_patch_is_exact_and_every_gate_learns_from_the_first_step(family: str):
    stock = tiny.build(family, dtype=torch.float64)
    before = tiny.logits(stock, tiny.inputs(family))
    model = patch_model(stock, RelPosConfig("dynamic_convolution", native="keep"))
    tiny.assert_close(tiny.logits(model, tiny.inputs(family)), before)
    assert patch_report(model).config.starts_exact
    model(**tiny.labelled(family)).loss.backward()
    for name, parameter in tiny.added(model).items():
        assert parameter.grad is not None, name
        assert parameter.grad.any() or not name.endswith("gate"), name
    tiny.train(model, family, steps=2)
    model(**tiny.labelled(family)).loss.backward()
    assert all(parameter.grad.any() for parameter in tiny.added(model).values())


def test_every_parameter_has_an_effect():
    model = tiny.fill(patch_model(tiny.build("gpt2"), DynamicConvolution(3)))
    batch = tiny.inputs("gpt2")
    before = tiny.logits(model, batch)
    for name, parameter in tiny.added(model).items():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter))
            assert tiny.differ(tiny.logits(model, batch), before) > 1e-4, name
            parameter.copy_(kept)


@pytest.mark.core
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_cached_decoding_is_the_full_forward_pass(static: bool, padding: bool):
    model = tiny.fill(
        patch_model(
            tiny.build("gpt2", dtype=torch.float64), RelPosConfig([DynamicConvolution(4), Shaw(3)], native="drop")
        )
    )
    ids, mask = tiny.tokens(2, 30), torch.ones(2, 30, dtype=torch.long)
    if padding:
        mask[1, :4] = 0
    full = tiny.logits(model, {"input_ids": ids, "attention_mask": mask})
    cache = cache_utils.StaticCache(model.config, 40) if static else cache_utils.DynamicCache(config=model.config)
    parts, start = [], 0
    for size in (7, 1, 5, 1, 1, 15):
        stop = start + size
        with torch.no_grad():
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], use_cache=True, **tiny.caching(model, cache))
        parts.append(out.logits)
        start = stop
    tiny.assert_close(torch.cat(parts, 1)[mask.bool()], full[mask.bool()], 1e-10)


@pytest.mark.core
def test_a_later_token_changes_nothing_before_it():
    model = tiny.fill(patch_model(tiny.build("gpt2"), "dynamic_convolution"))
    ids = tiny.tokens(1, 12)
    other = ids.clone()
    other[0, -1] = 3 if ids[0, -1] != 3 else 4
    before, after = tiny.logits(model, {"input_ids": ids}), tiny.logits(model, {"input_ids": other})
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert tiny.differ(before[:, -1], after[:, -1]) > 1e-3


def test_what_padding_holds_is_never_seen():
    scheme = DynamicConvolution(5).build(AttentionGeometry(HEADS, DIM, causal=False))
    torch.nn.init.ones_(scheme.gate)
    query, value = torch.randn(2, 2, HEADS, 9, DIM)
    mask = AttentionMask(9, 9, padding=PADDING)
    clean = scheme(AttentionCall(query, query, value, mask)).branch
    value[~PADDING[:, None, :, None].expand_as(value)] = math.nan
    assert torch.equal(scheme(AttentionCall(query, query, value, mask)).branch, clean)


@pytest.mark.core
def test_values_that_heads_share_are_repeated():
    scheme = DynamicConvolution(3).build(AttentionGeometry(4, DIM, causal=True))
    torch.nn.init.normal_(scheme.kernel)
    torch.nn.init.normal_(scheme.gate)
    query, value = torch.randn(1, 4, 6, DIM), torch.randn(1, 2, 6, DIM)
    mask = AttentionMask(6, 6, causal=True)
    shared = scheme(AttentionCall(query, value, value, mask)).branch
    repeated = value.repeat_interleave(2, dim=1)
    assert torch.equal(shared, scheme(AttentionCall(query, repeated, repeated, mask)).branch)


def test_only_the_layers_it_acts_in_have_parameters():
    model = patch_model(tiny.build("bert"), RelPosConfig(DynamicConvolution(3, first_layers=1), native="keep"))
    assert [name.split("relpos.")[1] for name in tiny.added(model)] == ["schemes.0.kernel", "schemes.0.gate"]
    assert all("layer.0." in name for name in tiny.added(model))


def test_half_precision_is_summed_in_float32():
    scheme = DynamicConvolution(31).build(AttentionGeometry(HEADS, DIM, causal=True))
    torch.nn.init.ones_(scheme.gate)
    query, value = torch.randn(2, 1, HEADS, 200, DIM).bfloat16()
    mask = AttentionMask(200, 200, causal=True)
    exact = scheme(AttentionCall(query.float(), query.float(), value.float(), mask)).branch
    half = scheme.to(torch.bfloat16)(AttentionCall(query, query, value, mask)).branch
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, exact.bfloat16())


@pytest.mark.core
def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(RelPosConfigError, match=r"kernel_size.*at least 1"):
        DynamicConvolution(0)
    with pytest.raises(RelPosConfigError, match=r"first_layers.*at least 1"):
        DynamicConvolution(first_layers=0)
    with pytest.raises(RelPosConfigError, match=r"kernel_size.*odd"):
        patch_model(tiny.build("bert"), DynamicConvolution(4))
    with pytest.raises(RelPosConfigError, match=r"share_layers.*False.*first_layers=1"):
        RelPosConfig(DynamicConvolution(first_layers=1), share_layers=True)
    with pytest.raises(RelPosConfigError, match=r"layers.*0 to 1"):
        RelPosConfig(DynamicConvolution(first_layers=2), layers=[2, 3])
    RelPosConfig(DynamicConvolution(first_layers=2), layers=[1, 3])
    RelPosConfig(DynamicConvolution(), share_layers=True)


def test_a_mask_that_does_not_fit_is_told_as_everywhere():
    scheme = DynamicConvolution(3).build(AttentionGeometry(HEADS, DIM, causal=True))
    query = torch.randn(1, HEADS, 6, DIM)
    with pytest.raises(ValueError, match="attention mask is for 5 queries"):
        scheme(AttentionCall(query, query, query, AttentionMask(5, 6)))
