"""What a backward pass computes from again is what the forward pass had, whatever callers do with their buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from cases import CHOICES
from torch import Tensor

from hf_relpos.engines import attend
from hf_relpos.engines.recompute import packed, unpacked
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

ENGINES = [name for name in CHOICES if name != "auto"]
TOKENS = 150  # two blocks of `blockwise`
PADDING = torch.ones(2, TOKENS, dtype=torch.bool)
PADDING[0, 100:] = False


def random_tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys(("query", "key", "value"), (2, 2, TOKENS, 4)) | {"bias": (2, 9)}
    tensors = {name: torch.randn(*shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def gradients(
    engine: str, between: Callable[[dict[str, Tensor]], Any] = lambda tensors: None, **rules: Any
) -> tuple[Tensor, ...]:
    """All gradients of a call, with something done between its forward and its backward pass."""
    leaves = random_tensors()
    inputs = {name: tensor + 0 for name, tensor in leaves.items()}
    mask = AttentionMask(TOKENS, TOKENS, **rules)
    states = inputs["query"], inputs["key"], inputs["value"]
    output, _ = attend(*states, RelativeTerms(bias=inputs["bias"]), mask, scale=0.5, engine=engine)
    with torch.no_grad():
        between(inputs)
    return torch.autograd.grad(output.square().sum(), list(leaves.values()))


def attempt(engine: str, between: Callable[[dict[str, Tensor]], Any]) -> tuple[Tensor, ...] | str:
    """The gradients, or the words of their refusal."""
    try:
        return gradients(engine, between)
    except RuntimeError as error:
        return str(error)


def assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.core
@pytest.mark.parametrize("engine", ENGINES)
def test_a_padding_mask_may_be_filled_for_the_next_batch_before_the_backward_pass(engine: str):
    buffer = PADDING.clone()
    actual = gradients(engine, lambda inputs: buffer.copy_(PADDING.flip(0)), padding=buffer)
    assert_equal(actual, gradients(engine, padding=PADDING))


def test_a_record_answers_as_it_was_made_also_for_what_it_looks_up_once():
    buffer = torch.ones(2, 6, dtype=torch.bool)
    mask = AttentionMask(6, 6, padding=buffer)
    assert not mask.hides_keys
    buffer[0, 4:] = False
    assert mask.allowed(slice(0, 6), slice(0, 6), buffer.device).all()


@pytest.mark.parametrize("engine", ["eager", "blockwise"])
def test_a_position_on_the_device_may_be_advanced_before_the_backward_pass(engine: str):
    position = torch.tensor(0)
    actual = gradients(engine, lambda inputs: position.add_(7), query_offset=position, causal=True)
    assert_equal(actual, gradients(engine, query_offset=torch.tensor(0), causal=True))


@pytest.mark.core
@pytest.mark.parametrize("engine", ["eager", "blockwise"])
def test_what_a_pattern_reads_may_change_before_the_backward_pass(engine: str):
    documents = torch.arange(TOKENS) // 40

    def pattern(query_at: Tensor, key_at: Tensor) -> Tensor:
        return (documents[query_at] == documents[key_at])[None, None]

    expected = gradients(engine, pattern=pattern)
    actual = gradients(engine, lambda inputs: documents.fill_(0), pattern=pattern)
    assert_equal(actual, expected)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 30])
def test_bools_packed_come_back(count: int):
    bools = torch.rand(2, 1, 3, count, generator=torch.Generator().manual_seed(count)) < 0.5
    assert packed(bools).shape == (2, 1, 3, -(-count // 8))
    assert torch.equal(unpacked(packed(bools), count), bools)


@pytest.mark.core
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_a_dense_mask_that_was_changed_is_an_error_that_names_it_where_it_is_needed_again(dtype: torch.dtype):
    dense = torch.ones(1, 1, TOKENS, TOKENS).tril().to(dtype)
    expected = gradients("eager", dense=dense.clone())
    buffer = dense.clone()
    assert_equal(gradients("eager", lambda inputs: buffer.zero_(), dense=buffer), expected)
    buffer = dense.clone()
    with pytest.raises(RuntimeError, match=r"The attention mask of attention.* was changed in place.*a copy"):
        gradients("blockwise", lambda inputs: buffer.zero_(), dense=buffer)


def test_a_dense_mask_made_in_inference_mode_serves_in_training():
    with torch.inference_mode():
        dense = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    assert_equal(gradients("blockwise", dense=dense), gradients("eager", dense=dense.clone()))


@pytest.mark.core
@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "eager"])
def test_states_and_tables_that_were_changed_never_give_other_gradients(engine: str, name: str):
    expected = gradients(engine)
    actual = attempt(engine, lambda inputs: inputs[name].mul_(2.0))
    if isinstance(actual, str):
        assert "place" in actual  # ours, or autograd's
    else:
        assert engine != "blockwise"
        assert_equal(actual, expected)


@pytest.mark.core
@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_models_two_batches_in_flight_may_share_a_mask_buffer(family: str, engine: str):
    model = tiny.patched(family, "t5", "drop", "head", engine=engine)
    ids, masks = tiny.tokens(2, 12), [torch.ones(2, 12, dtype=torch.bool) for _ in range(2)]
    masks[0][0, 7:], masks[1][1, 3:] = False, False

    def losses(buffers: list[Tensor]) -> list[Tensor]:
        made = []
        for buffer, mask in zip(buffers, masks, strict=True):
            buffer.copy_(mask)
            logits = model(input_ids=ids, attention_mask=buffer).logits
            made.append(logits[mask].square().sum())
        return made

    shared = torch.ones(2, 12, dtype=torch.bool)
    learns = list(model.parameters())
    actual = torch.autograd.grad(sum(losses([shared, shared])), learns, allow_unused=True)
    expected = torch.autograd.grad(sum(losses([shared, shared.clone()])), learns, allow_unused=True)
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
