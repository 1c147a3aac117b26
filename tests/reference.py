"""Attention with relative terms written down once more, for the tests: no code shared with the package.

Everything is done pair by pair: a table becomes a vector for each query and key, a mask a decision for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hf_relpos.terms import RelativeTerms


def offset_rows(queries: int, keys: int, query_offset: int, k: int) -> Tensor:
    """The table row of each pair, ``[queries, keys]``: ``clip(j - i, -k, k) + k``, in Python."""
    return torch.tensor([[max(-k, min(k, j - (query_offset + i))) + k for j in range(keys)] for i in range(queries)])


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    *,
    scale: float,
    query_offset: int = 0,
    allowed: Tensor | None = None,
    added: Tensor | None = None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output and the weights, by einsum over ``[heads, queries, keys, dim]`` tables.

    ``allowed`` and ``added`` broadcast to ``[batch, heads, queries, keys]``; ``keep`` multiplies the weights (dropout).
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    groups = heads // key.shape[1]
    key = torch.stack([key[:, head // groups] for head in range(heads)], dim=1)
    value = torch.stack([value[:, head // groups] for head in range(heads)], dim=1)

    def pairs(table: Tensor) -> Tensor:
        rows = offset_rows(queries, keys, query_offset, table.shape[1] // 2)
        return torch.stack([table[head if table.shape[0] > 1 else 0][rows] for head in range(heads)])

    gate = query.new_ones(()) if terms.gate is None else terms.gate[..., None]
    scores = scale * torch.einsum("bhid,bhjd->bhij", query, key)
    if terms.query is not None:
        scores = scores + gate * scale * torch.einsum("bhid,hijd->bhij", query, pairs(terms.query))
    if terms.key is not None:
        scores = scores + gate * scale * torch.einsum("bhjd,hijd->bhij", key, pairs(terms.key))
    if terms.bias is not None:
        scores = scores + gate * pairs(terms.bias)
    if terms.native_bias is not None:
        scores = scores + pairs(terms.native_bias)
    if added is not None:
        scores = scores + added
    if allowed is None:
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    allowed = allowed.expand(batch, heads, queries, keys)
    sees_any = allowed.any(-1, keepdim=True)
    weights = scores.masked_fill(~allowed & sees_any, float("-inf")).softmax(-1) * allowed

    kept = weights if keep is None else weights * keep
    output = torch.einsum("bhij,bhjd->bhid", kept, value)
    if terms.value is not None:
        mixed = torch.einsum("bhij,hijd->bhid", kept, pairs(terms.value))
        output = output + (mixed if terms.gate is None else gate * mixed)
    return output, weights


def shaw_loops(query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor) -> Tensor:
    """Shaw et al. 2018 as printed, one number at a time, for one sequence and head: ``[length, dim]`` each.

    Equation 4: ``e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z)``; equation 2: their softmax; equation 3:
    ``z_i = sum_j alpha_ij (x_j W^V + a^V_ij)``; with ``a_ij = w_clip(j - i, k)`` of section 3.2.
    """
    length, dim = query.shape
    k = (key_table.shape[0] - 1) // 2

    def clip(distance: int) -> int:
        return max(-k, min(k, distance))

    outputs = []
    for i in range(length):
        exponentials = []
        for j in range(length):
            product = sum(query[i, c] * (key[j, c] + key_table[clip(j - i) + k, c]) for c in range(dim))
            exponentials.append((product / dim**0.5).exp())
        total = sum(exponentials)
        outputs.append(sum(exponentials[j] / total * (value[j] + value_table[clip(j - i) + k]) for j in range(length)))
    return torch.stack(outputs)


def allowed_pairs(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    *,
    query_offset: int = 0,
    causal: bool = False,
    window: int | None = None,
    padding: Tensor | None = None,
    rule: Callable[[int, int, int, int], bool] | None = None,
    dense: Tensor | None = None,
) -> Tensor:
    """Who may attend to whom, ``[batch, heads, queries, keys]``, decided in Python for each pair.

    ``rule`` is given batch, head, query position, key position; ``dense`` is a bool mask, or a float one in which
    minus infinity hides.
    """

    def decide(b: int, h: int, i: int, j: int) -> bool:
        position = query_offset + i
        if causal and j > position:
            return False
        if window is not None and abs(j - position) > window:
            return False
        if padding is not None and not padding[b, j]:
            return False
        if rule is not None and not rule(b, h, position, j):
            return False
        if dense is not None:
            entry = dense[b % dense.shape[0], h % dense.shape[1], i % dense.shape[2], j]
            return bool(entry) if dense.dtype == torch.bool else bool(entry > torch.finfo(dense.dtype).min)
        return True

    return torch.tensor(
        [
            [[[decide(b, h, i, j) for j in range(keys)] for i in range(queries)] for h in range(heads)]
            for b in range(batch)
        ]
    )


def output_and_gradients(
    compute: Callable[[dict[str, Tensor]], Tensor], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What ``compute`` makes of fresh leaves of the tensors, and the gradient of each under a fixed cotangent."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    output = compute(leaves)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    output.backward(cotangent.to(output.dtype))
    gradients: dict[str, Any] = {f"gradient of {name}": leaf.grad for name, leaf in leaves.items()}
    return {"output": output.detach(), **gradients}


def assert_all_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Each entry within ``tolerance`` of the expected one, relative to the latter's largest number (or 1)."""
    assert actual.keys() == expected.keys()
    for name, wanted in expected.items():
        assert actual[name] is not None, f"there is no {name}"
        assert actual[name].isfinite().all(), f"{name} is not finite"
        size = max(1.0, wanted.abs().max().item())
        error = (actual[name].double() - wanted.double()).abs().max().item()
        assert error <= tolerance * size, f"{name} is off by {error:.2e} at a size of {size:.2e}"
