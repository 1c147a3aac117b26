"""Relative key and value vectors.

Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations",
https://arxiv.org/abs/1803.02155.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_relpos.schemes.base import AttentionGeometry, LearnedTable, LearnedTables, Scheme
from hf_relpos.terms import RelativeTerms


@dataclass(frozen=True)
class Shaw(LearnedTables):
    """A learned vector per clipped offset, added to the keys, the values, or both (equations 3 and 4).

    Attributes:
        max_distance: the clip distance ``k`` of section 3.2; each table has ``2k + 1`` vectors.
        key: add ``a^K`` to the keys (in the scores).
        value: add ``a^V`` to the values (in the output).
        per_head: a table for each head; the paper shares one among the heads of a layer.
        rank: factorise each table into two factors of this rank; None keeps it dense.
        init: ``"zeros"`` leaves a pretrained model as it is at the start, ``"trunc_normal"`` does not.
        init_std: standard deviation of the random start.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "shaw"

    max_distance: int = 16
    key: bool = True
    value: bool = True
    per_head: bool = False
    rank: int | None = None
    init: str = "zeros"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        self._check_positive_int("max_distance")
        self._check_bool("key", "value", "per_head")
        if not (self.key or self.value):
            raise self._wrong("key", "True where `value` is False: with both off the scheme does nothing")
        if self.rank is not None:
            self._check_positive_int("rank")
            if self.rank > 2 * self.max_distance:
                raise self._wrong("rank", f"less than the {2 * self.max_distance + 1} rows of a table, or None")
        self._check_init()

    @property
    def parts(self) -> frozenset[str]:
        """The query's term for the key vectors, the value's for the value vectors."""
        return frozenset({"query"} if self.key else ()) | frozenset({"value"} if self.value else ())

    @property
    def horizon(self) -> int:
        """The clip distance."""
        return self.max_distance

    def build(self, geometry: AttentionGeometry) -> ShawScheme:
        """The tables for one layer."""
        return ShawScheme(self, geometry)


class ShawScheme(Scheme):
    """Tables ``[heads or 1, 2k + 1, head_dim]`` for the keys (multiplied with the query) and for the values."""

    def __init__(self, config: Shaw, geometry: AttentionGeometry) -> None:
        super().__init__()

        def table() -> LearnedTable:
            return LearnedTable(
                geometry.num_heads if config.per_head else 1,
                2 * config.max_distance + 1,
                geometry.head_dim,
                rank=config.rank,
                start=config.init,
                std=config.init_std,
            )

        # The names avoid "key" and "value" alone: adapters that target layers of that name must not meet these.
        self.key_table = table() if config.key else None
        self.value_table = table() if config.value else None

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """The two tables; ``q_i . a^K`` is the query's term."""
        key, value = self.key_table, self.value_table
        return RelativeTerms(query=None if key is None else key(), value=None if value is None else value())
