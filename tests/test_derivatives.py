"""Derivatives of every kind: right, or refused in words that name an engine that has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from cases import CHOICES
from torch import Tensor
from torch.autograd import forward_ad

from hf_relpos.engines import attend
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

HAVE_ALL = ("eager", "blockwise")
LENGTH = 70  # two blocks of every engine that has any
SHAPES = {**dict.fromkeys(("query", "key", "value"), (1, 2, LENGTH, 4)), "bias": (2, 5)}


def inputs() -> list[Tensor]:
    """Query, key, value and a table of biases."""
    random = torch.Generator().manual_seed(LENGTH)
    return [torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_() for shape in SHAPES.values()]


def output(engine: str, *tensors: Tensor) -> Tensor:
    query, key, value, bias = tensors
    mask = AttentionMask(query.shape[2], query.shape[2], causal=True)
    return attend(query, key, value, RelativeTerms(bias=bias), mask, scale=0.5, engine=engine)[0]


def second(engine: str) -> list[Tensor]:
    """Gradients of the size of the gradients."""
    tensors = inputs()
    loss = output(engine, *tensors).square().sum()
    gradients = torch.autograd.grad(loss, tensors, create_graph=True)
    return list(torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), tensors))


def batched(engine: str) -> list[Tensor]:
    """Gradients for several cotangents at once."""
    tensors = inputs()
    made = output(engine, *tensors)
    cotangents = torch.stack([torch.ones_like(made), made.detach()])
    return list(torch.autograd.grad(made, tensors, cotangents, is_grads_batched=True))


def forward(engine: str) -> list[Tensor]:
    """The derivative along one direction, in forward mode."""
    with forward_ad.dual_level():
        tensors = [tensor.detach() for tensor in inputs()]
        duals = [forward_ad.make_dual(tensor, torch.ones_like(tensor)) for tensor in tensors]
        return [forward_ad.unpack_dual(output(engine, *duals)).tangent]


def forward_of_one(engine: str) -> list[Tensor]:
    """The same along the table alone, which the output depends on least directly."""
    with forward_ad.dual_level():
        *states, bias = (tensor.detach() for tensor in inputs())
        dual = forward_ad.make_dual(bias, torch.ones_like(bias))
        return [forward_ad.unpack_dual(output(engine, *states, dual)).tangent]


KINDS: dict[str, Callable[[str], list[Tensor]]] = {
    function.__name__: function for function in (second, batched, forward, forward_of_one)
}


def attempt(derivative: Callable[[str], list[Tensor]], engine: str) -> list[Tensor] | str:
    """The derivative, or the words of its refusal."""
    try:
        return derivative(engine)
    except (RuntimeError, ValueError) as error:
        return str(error)


@cache
def expected(kind: str) -> list[Tensor]:
    return KINDS[kind]("eager")


@pytest.mark.core
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", CHOICES)
def test_a_derivative_is_right_or_the_error_names_an_engine_that_has_it(engine: str, kind: str):
    actual = attempt(KINDS[kind], engine)
    if isinstance(actual, str):
        assert engine not in HAVE_ALL
        assert "'blockwise'" in actual
        # The choice can tell that a derivative is carried along, but not what will be asked of a gradient.
        assert engine != "auto" or not kind.startswith("forward")
    else:
        for one, other in zip(actual, expected(kind), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif("fused" not in CHOICES, reason="the kernel is not compiled")
def test_a_second_derivative_is_refused_also_beside_a_path_that_has_one():
    """PyTorch's `once_differentiable` would leave out what went through attention, without a word."""
    tensors = inputs()
    loss = output("fused", *tensors).sum() + tensors[0].pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match=r"has no second derivatives.*'eager'.*'blockwise'"):
        torch.autograd.grad(gradient.square().sum(), tensors[:1])


@pytest.mark.skipif("fused" not in CHOICES, reason="the kernel is not compiled")
def test_a_graph_of_the_gradients_that_is_not_used_is_no_error():
    tensors = inputs()
    plain = torch.autograd.grad(output("fused", *tensors).sum(), tensors)
    graphed = torch.autograd.grad(output("fused", *tensors).sum(), tensors, create_graph=True)
    assert all(map(torch.equal, plain, graphed))


def test_attention_without_terms_has_forward_mode_and_with_eager_all():
    query, key, value, _ = inputs()

    def run(query: Tensor, engine: str = "auto") -> Tensor:
        mask = AttentionMask(LENGTH, LENGTH, causal=True)
        return attend(query, key.detach(), value.detach(), RelativeTerms(), mask, scale=0.5, engine=engine)[0]

    direction = torch.ones_like(query)
    _, tangent = torch.func.jvp(run, (query.detach(),), (direction,))
    (gradient,) = torch.autograd.grad(run(query, "eager").sum(), query, create_graph=True)
    torch.testing.assert_close(tangent.sum(), (gradient * direction).sum())
    torch.autograd.grad(gradient.square().sum(), query)


@pytest.mark.core
@pytest.mark.parametrize("engine", ["auto", *HAVE_ALL])
def test_transforms_of_torch_func_agree_with_autograd(engine: str):
    query, *others = inputs()

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
