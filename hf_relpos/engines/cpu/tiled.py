"""Attention tile by tile, with the tails of a block left to PyTorch's fused operator; what `dense` and `banded` share.

Within a block, scores exist for one tile at a time, and are computed again in the backward pass: a window's weights are
its own softmax, times its share of the query's weight, which the log-sum-exps give. What the relative terms add to a
tile is a few numbers per query, at the offsets near the diagonal, which a strided view of the tile shows as columns;
plus one number per query for all keys to the right of them. Constants of a query change no weight, so every table comes
with its leftmost entry subtracted, and nothing is added to the left.

What lies beyond the windows is added by `tails`, which leaves it to the fused operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_relpos.engines import eager
from hf_relpos.engines.cpu.layout import Inputs
from hf_relpos.engines.cpu.tables import Tables
from hf_relpos.engines.cpu.tiled_backward import Backward
from hf_relpos.engines.cpu.tiled_forward import Forward, Statistics
from hf_relpos.engines.cpu.tiles import Plan
from hf_relpos.engines.derivatives import first_order


def attend(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, plan: Plan, tables: Tables) -> Tensor:
    """Attention ``[batch, heads, queries, dim]`` with the terms of the tables.

    Args:
        query: ``[batch, heads, queries, dim]``, float32 or float64.
        key: ``[batch, heads, keys, dim]``.
        value: like ``key``.
        padding: bool ``[batch, keys]``, True where there is a token, or None.
        plan: the geometry.
        tables: what is added.
    """
    return _Tiled.apply(query, key, value, padding, plan, *tables)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        plan: Plan,
        *tables: Tensor | None,
    ) -> Tensor:
        seed = int(torch.randint(2**62, (), device="cpu")) if plan.dropout > 0 else 0
        inputs = Inputs(plan, query, key, value, padding, Tables(*tables), seed)
        run = Forward(inputs)
        for part in inputs.parts():
            run.part(part)
        statistics = run.finish()
        ctx.save_for_backward(query, key, value, padding, *statistics, *tables)
        ctx.plan, ctx.seed = plan, seed
        return statistics.output

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, padding, *saved = ctx.saved_tensors
        count = len(Statistics._fields)
        statistics, tables = Statistics(*saved[:count]), saved[count:]
        with eager.full_precision(grad.device):
            inputs = Inputs(ctx.plan, query, key, value, padding, Tables(*tables), ctx.seed)
            learn = Tables(*ctx.needs_input_grad[5:])
            run = Backward(inputs, learn, grad, statistics)
            for part in inputs.parts():
                run.part(part)
            run.finish()
        return run.grad_query, run.grad_key, run.grad_value, None, None, *run.grad_tables()
