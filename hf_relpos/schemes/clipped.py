"""A learned bias per head and clipped offset: the bias form of the clipped tables of Shaw et al. 2018, section 3.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_relpos.schemes.base import AttentionGeometry, LearnedTable, LearnedTables, Scheme
from hf_relpos.terms import RelativeTerms


@dataclass(frozen=True)
class ClippedBias(LearnedTables):
    """One learned number per head and offset, added to the scores outside their scale.

    Attributes:
        max_distance: the clip distance ``k``; keys farther away than this cannot be told apart.
        init: ``"zeros"`` leaves a pretrained model as it is at the start, ``"trunc_normal"`` does not.
        init_std: standard deviation of the random start.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "clipped"
    parts = frozenset({"bias"})

    max_distance: int = 128
    init: str = "zeros"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        self._check_positive_int("max_distance")
        self._check_init()

    @property
    def horizon(self) -> int:
        """The clip distance."""
        return self.max_distance

    def advice(self, trained_length: int | None) -> str | None:
        """That far keys cannot be told apart, where that is most of what the model was trained on."""
        if trained_length is None or self.max_distance >= trained_length / 2:
            return None
        return (
            f"ClippedBias(max_distance={self.max_distance}) on a model trained with {trained_length} positions: "
            f"keys more than {self.max_distance} tokens away cannot be told apart. Consider "
            f"max_distance={trained_length // 2} or more, or T5Bias, whose buckets widen with distance."
        )

    def build(self, geometry: AttentionGeometry) -> ClippedBiasScheme:
        """The table for one layer."""
        return ClippedBiasScheme(self, geometry)


class ClippedBiasScheme(Scheme):
    """A bias table ``[heads, 2k + 1]``."""

    def __init__(self, config: ClippedBias, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.bias_table = LearnedTable(
            geometry.num_heads, 2 * config.max_distance + 1, start=config.init, std=config.init_std
        )

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """The table as it is."""
        return RelativeTerms(bias=self.bias_table())
