"""A learned bias per head and logarithmic distance bucket.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1,
https://arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_relpos.compat import pytorch
from hf_relpos.schemes.base import AttentionGeometry, LearnedTable, LearnedTables, Scheme
from hf_relpos.terms import RelativeTerms


@dataclass(frozen=True)
class T5Bias(LearnedTables):
    """T5's bias: small distances have a bucket each, larger ones share buckets that widen logarithmically.

    In an encoder half of the buckets are for keys before the query and half for keys after it; in a causal
    decoder all are for keys before it.

    Attributes:
        num_buckets: how many buckets in all; even, at least 4.
        max_distance: distances from here on share the last bucket. Must exceed the number of distances that have
            a bucket of their own: a quarter of ``num_buckets`` in an encoder, half of it in a decoder.
        init: ``"zeros"`` leaves a pretrained model as it is at the start, ``"trunc_normal"`` does not.
        init_std: standard deviation of the random start.

    Raises:
        RelPosConfigError: for a wrong value; names the field, the value and what is allowed.
    """

    name: ClassVar[str] = "t5"
    parts = frozenset({"bias"})

    num_buckets: int = 32
    max_distance: int = 128
    init: str = "zeros"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        self._check_positive_int("num_buckets", "max_distance")
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise self._wrong("num_buckets", "an even number of at least 4")
        self._check_distance(causal=False)
        self._check_init()

    def _check_distance(self, causal: bool) -> None:
        exact = exact_distances(self.num_buckets, causal)
        if self.max_distance <= exact:
            attention = "causal" if causal else "bidirectional"
            raise self._wrong(
                "max_distance",
                f"more than {exact}: with num_buckets={self.num_buckets}, {attention} attention gives that many "
                "distances a bucket of their own, and the logarithmic buckets need room beyond",
            )

    @property
    def horizon(self) -> int:
        """A distance by which the last bucket has begun."""
        return self.max_distance

    def build(self, geometry: AttentionGeometry) -> T5BiasScheme:
        """The bucket table for one layer."""
        self._check_distance(geometry.causal)
        return T5BiasScheme(self, geometry)


class T5BiasScheme(Scheme):
    """A bias table ``[heads, num_buckets]``, read out per offset."""

    def __init__(self, config: T5Bias, geometry: AttentionGeometry) -> None:
        super().__init__()
        self.config = config
        self.causal = geometry.causal
        self.bucket_table = LearnedTable(geometry.num_heads, config.num_buckets, start=config.init, std=config.init_std)

    def tables(self, reach: int, like: Tensor) -> RelativeTerms:
        """The bias ``[heads, 2 * max_distance + 1]``."""
        table = self.bucket_table()
        buckets = _buckets(self.config.num_buckets, self.config.max_distance, self.causal, table)
        return RelativeTerms(bias=table.index_select(1, buckets))


# Buckets computed before. Not buffers: one outside the checkpoint would be uninitialised memory after loading.
_KNOWN: dict[tuple[int, int, bool, torch.device], Tensor] = {}


def _buckets(num_buckets: int, max_distance: int, causal: bool, table: Tensor) -> Tensor:
    """The buckets of the offsets ``-max_distance .. max_distance``, on the device of the table that they are for."""
    # What compilers, exporters, transforms and meta devices work with are not tensors with numbers, to be kept.
    numbers = type(table) in (Tensor, nn.Parameter) and table.device.type != "meta"
    if torch.compiler.is_compiling() or pytorch.is_transformed() or not numbers:
        offsets = torch.arange(-max_distance, max_distance + 1, device=table.device)
        return bucket_of(offsets, num_buckets, max_distance, causal)
    asked = (num_buckets, max_distance, causal, table.device)
    if asked not in _KNOWN:
        with torch.inference_mode(False):
            offsets = torch.arange(-max_distance, max_distance + 1, device=table.device)
            _KNOWN[asked] = bucket_of(offsets, num_buckets, max_distance, causal)
    return _KNOWN[asked]


def exact_distances(num_buckets: int, causal: bool) -> int:
    """How many distances (from 0 on) have a bucket of their own."""
    return (num_buckets if causal else num_buckets // 2) // 2


def bucket_of(offsets: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """T5's bucket of each offset (key position - query position).

    Distance ``n`` below ``exact`` is bucket ``n``; beyond, it is
    ``exact + floor(log(n / exact) / log(max_distance / exact) * (buckets - exact))``, at most the last bucket.
    The logarithm is taken in float32 and the factors in this order, as in the published function, whose bucket
    borders depend on the rounding.

    Args:
        offsets: whole numbers, any shape.
        num_buckets: number of buckets in all.
        max_distance: a distance by which the last bucket has begun.
        causal: keys after the query (which causal attention never sees) all get bucket 0; else they have the
            upper half of the buckets.

    Returns:
        The bucket numbers, int64, in the shape of ``offsets``.
    """
    exact = exact_distances(num_buckets, causal)
    if causal:
        per_side = num_buckets
        distance = (-offsets).clamp(min=0)
        side = torch.zeros_like(offsets)
    else:
        per_side = num_buckets // 2
        distance = offsets.abs()
        side = (offsets > 0).long() * per_side
    log_ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    wide = exact + (log_ratio * (per_side - exact)).long()
    return side + torch.where(distance < exact, distance, wide.clamp(max=per_side - 1))
