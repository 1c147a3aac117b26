"""Relative vectors that meet both the query and the key.

Huang, Liang, Xu, Xiang 2020, "Improve Transformer Models with Better Relative Position Embeddings",
https://arxiv.org/abs/2009.13658, method 4 (equation 11). BERT's ``position_embedding_type="relative_key_query"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_relpos.schemes.base import AttentionGeometry, LearnedTable, LearnedTables, Scheme
from hf_relpos.terms import RelativeTerms


@dataclass(frozen=True)
class RelativeKeyQuery(LearnedTables):
    """A learned vector per clipped offset, ``scale * (q_i . k_j + q_i . a[d] + k_j . a[d])``, the same for all heads.

    Attributes:
        max_distance: the clip distance ``k``; the table has ``2k + 1`` vectors.
        init: ``"zeros"`` leaves a pretrained model as it is at the start, ``"trunc_normal"`` does not.
        init_std: standard deviation of the random start.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "relative_key_query"
    parts = frozenset({"query", "key"})

    max_distance: int = 16
    init: str = "zeros"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        self._check_positive_int("max_distance")
        self._check_init()

    @property
    def horizon(self) -> int:
        """The clip distance."""
        return self.max_distance

    def build(self, geometry: AttentionGeometry) -> RelativeKeyQueryScheme:
        """The table for one layer."""
        return RelativeKeyQueryScheme(self, geometry)


class RelativeKeyQueryScheme(Scheme):
    """A table ``[1, 2k + 1, head_dim]``."""

    def __init__(self, config: RelativeKeyQuery, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.vector_table = LearnedTable(
            1, 2 * config.max_distance + 1, geometry.head_dim, start=config.init, std=config.init_std
        )

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """The one table, for queries and for keys."""
        table = self.vector_table()
        return RelativeTerms(query=table, key=table)
