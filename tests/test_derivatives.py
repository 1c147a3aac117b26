"""Derivatives of every kind, at every length: right, or refused in words that name an engine that has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hf_relpos.engines import ENGINE_NAMES, attend
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

# "auto" runs `eager` at the first and `dense` or `toeplitz` at the second.
LENGTHS = (5, 200)
HAVE_ALL = ("eager", "blockwise")
SHAPES = {"query": (1, 2, 0, 4), "key": (1, 2, 0, 4), "value": (1, 2, 0, 4), "bias": (2, 5)}


def inputs(length: int, learns: bool = True) -> list[Tensor]:
    """Query, key, value and a table of biases."""
    random = torch.Generator().manual_seed(length)
    tensors = [
        torch.randn(*[size or length for size in shape], generator=random, dtype=torch.float64)
        for shape in SHAPES.values()
    ]
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(learns or number < 3)
    return tensors


def output(engine: str, *tensors: Tensor) -> Tensor:
    query, key, value, bias = tensors
    mask = AttentionMask(query.shape[2], query.shape[2], causal=True)
    return attend(query, key, value, RelativeTerms(bias=bias), mask, scale=0.5, engine=engine)[0]


def second(engine: str, length: int) -> list[Tensor]:
    """Gradients of the size of the gradients."""
    tensors = inputs(length, learns=engine != "toeplitz")
    loss = output(engine, *tensors).square().sum()
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    return list(torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), leaves))


def batched(engine: str, length: int) -> list[Tensor]:
    """Gradients for several cotangents at once."""
    tensors = inputs(length, learns=engine != "toeplitz")
    made = output(engine, *tensors)
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    cotangents = torch.stack([torch.ones_like(made), made.detach()])
    return list(torch.autograd.grad(made, leaves, cotangents, is_grads_batched=True))


def forward(engine: str, length: int) -> list[Tensor]:
    """The derivative along one direction, in forward mode."""
    with forward_ad.dual_level():
        tensors = [tensor.detach() for tensor in inputs(length)]
        duals = [forward_ad.make_dual(tensor, torch.ones_like(tensor)) for tensor in tensors]
        return [forward_ad.unpack_dual(output(engine, *duals)).tangent]


def forward_of_one(engine: str, length: int) -> list[Tensor]:
    """The same along the table alone, which the output depends on least directly."""
    with forward_ad.dual_level():
        *states, bias = (tensor.detach() for tensor in inputs(length))
        dual = forward_ad.make_dual(bias, torch.ones_like(bias))
        return [forward_ad.unpack_dual(output(engine, *states, dual)).tangent]


KINDS: dict[str, Callable[[str, int], list[Tensor]]] = {
    function.__name__: function for function in (second, batched, forward, forward_of_one)
}


def attempt(derivative: Callable[[str, int], list[Tensor]], engine: str, length: int) -> list[Tensor] | str:
    """The derivative, or the words of its refusal."""
    try:
        return derivative(engine, length)
    except (RuntimeError, ValueError) as error:
        return str(error)


@cache
def expected(kind: str, length: int) -> list[Tensor]:
    return KINDS[kind]("eager", length)


@pytest.mark.core
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_derivative_is_right_or_the_error_names_an_engine_that_has_it(engine: str, kind: str, length: int):
    actual = attempt(KINDS[kind], engine, length)
    if isinstance(actual, str):
        assert engine not in HAVE_ALL
        assert "'blockwise'" in actual
        # The choice can tell that a derivative is carried along, but not what will be asked of a gradient.
        assert engine != "auto" or not kind.startswith("forward")
    else:
        # The one that takes fixed biases only has no gradient of theirs.
        for one, other in zip(actual, expected(kind, length), strict=engine != "toeplitz"):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", ["dense", "banded", "toeplitz"])
def test_a_second_derivative_is_refused_also_beside_a_path_that_has_one(engine: str):
    """PyTorch's `once_differentiable` would leave out what went through attention, without a word."""
    tensors = inputs(20, learns=engine != "toeplitz")
    loss = output(engine, *tensors).sum() + tensors[0].pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match=r"has no second derivatives.*'eager'.*'blockwise'"):
        torch.autograd.grad(gradient.square().sum(), tensors[:1])


@pytest.mark.parametrize("engine", ["dense", "banded", "toeplitz"])
def test_a_graph_of_the_gradients_that_is_not_used_is_no_error(engine: str):
    tensors = inputs(20, learns=engine != "toeplitz")
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    plain = torch.autograd.grad(output(engine, *tensors).sum(), leaves)
    graphed = torch.autograd.grad(output(engine, *tensors).sum(), leaves, create_graph=True)
    assert all(map(torch.equal, plain, graphed))


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_without_terms_has_forward_mode_and_with_eager_all(length: int):
    query, key, value, _ = inputs(length)

    def run(query: Tensor, engine: str = "auto") -> Tensor:
        mask = AttentionMask(length, length, causal=True)
        return attend(query, key.detach(), value.detach(), RelativeTerms(), mask, scale=0.5, engine=engine)[0]

    direction = torch.ones_like(query)
    _, tangent = torch.func.jvp(run, (query.detach(),), (direction,))
    (gradient,) = torch.autograd.grad(run(query, "eager").sum(), query, create_graph=True)
    torch.testing.assert_close(tangent.sum(), (gradient * direction).sum())
    torch.autograd.grad(gradient.square().sum(), query)


@pytest.mark.core
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("engine", ["auto", *HAVE_ALL])
def test_transforms_of_torch_func_agree_with_autograd(engine: str, length: int):
    query, *others = inputs(length)

    def loss(query: Tensor) -> Tensor:
        return output(engine, query, *(other.detach() for other in others)).square().sum()

    value = query.detach()
    (first,) = torch.autograd.grad(output("eager", query, *others).square().sum(), query, create_graph=True)
    (twice,) = torch.autograd.grad(first.sum(), query)
    torch.testing.assert_close(torch.func.grad(loss)(value), first.detach())
    torch.testing.assert_close(torch.func.grad(lambda query: torch.func.grad(loss)(query).sum())(value), twice)
    torch.testing.assert_close(torch.func.jvp(torch.func.grad(loss), (value,), (torch.ones_like(value),))[1], twice)
    many = torch.func.vmap(torch.func.grad(loss))(torch.stack([value, 2 * value]))
    torch.testing.assert_close(many[0], first.detach())
