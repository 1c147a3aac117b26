"""Learned gates on the relative terms. Each starts at exactly 1, so that a fresh patch acts at full strength."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import initialization as init

from hf_relpos.schemes import AttentionGeometry
from hf_relpos.terms import RelativeTerms


class _Gate(nn.Module):
    """Base of the gates, which have a learned ``weight``."""

    weight: nn.Parameter

    def extra_repr(self) -> str:
        """The shape, for ``print(model)``."""
        return "x".join(map(str, self.weight.shape))


class HeadGate(_Gate):
    """One learned factor per head, ``[heads]``."""

    def __init__(self, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(geometry.num_heads))
        self.reset_relpos_parameters()

    def reset_relpos_parameters(self) -> None:
        """Open the gate: 1 (skipped if already loaded from a checkpoint)."""
        init.ones_(self.weight)

    def forward(self, terms: RelativeTerms, query: Tensor) -> RelativeTerms:
        """The terms with each head's tables times its factor; for one query, with the factors as its gate."""
        if query.shape[2] == 1:
            # In a step of generation there are fewer numbers to gate than the tables have.
            return terms._replace(gate=self.weight.view(1, -1, 1))
        return terms.scaled(self.weight)


class TokenGate(_Gate):
    """A factor per query and head, computed from the query: ``2 * sigmoid(q . weight + bias)``, between 0 and 2."""

    def __init__(self, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(geometry.num_heads, geometry.head_dim))
        self.bias = nn.Parameter(torch.empty(geometry.num_heads))
        self.reset_relpos_parameters()

    def reset_relpos_parameters(self) -> None:
        """Open the gate: zeros, which give exactly 1 (skipped if already loaded from a checkpoint)."""
        init.zeros_(self.weight)
        init.zeros_(self.bias)

    def forward(self, terms: RelativeTerms, query: Tensor) -> RelativeTerms:
        """The terms with a gate ``[batch, heads, queries]`` for queries ``[batch, heads, queries, head_dim]``."""
        logits = torch.einsum("bhqd,hd->bhq", query, self.weight.to(query)) + self.bias.to(query)[:, None]
        return terms._replace(gate=2 * torch.sigmoid(logits))


GATES: dict[str, type[HeadGate] | type[TokenGate] | None] = {"none": None, "head": HeadGate, "token": TokenGate}
