"""The engines: one file each, all computing the same function. None of them knows a scheme.

To add one: a file with an ``attend`` like :func:`hf_relpos.engines.eager.attend`, a row in ``ENGINES``, what it cannot
take in ``REFUSES``, and its place in :func:`by_speed`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.utils import logging

from hf_relpos.engines import blockwise, eager, plain
from hf_relpos.engines.cpu import banded, dense, single, toeplitz
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

logger = logging.get_logger(__name__)

ENGINES: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "eager": eager.attend,
    "dense": dense.attend,
    "blockwise": blockwise.attend,
    "banded": banded.attend,
    "toeplitz": toeplitz.attend,
}

# What of a case an engine cannot take exactly, in words, or None; engines that take everything are not here.
REFUSES: dict[str, Callable[..., str | None]] = {
    "dense": dense.refuses,
    "banded": banded.refuses,
    "toeplitz": toeplitz.refuses,
}

# The engines that hold all scores, compute them tile by tile, or leave most of it to a fused operator pay off at
# different lengths. Measured on the CPU; see docs/performance.md.

# Below so many queries, holding all scores is fastest: in general, for a bias alone, for a bias that does not learn.
SHORT, SHORT_BIAS, SHORT_FIXED_BIAS = 96, 192, 128

# The same with attention dropout, which no fused operator takes.
SHORT_DROPPING, SHORT_BIAS_DROPPING = 192, 512

# From so many queries on, the fused operator pays off.
LONG, LONG_CAUSAL = 1024, 513

# Up to this many scores per head, holding them all is faster than computing them again in the backward pass.
EAGER_SCORES = 512 * 512


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
    engine: str = "auto",
    weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention with relative terms by the engine asked for.

    Args:
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``; the number of heads is a multiple of the key heads.
        value: ``[batch, key heads, keys, value_dim]``.
        terms: what relative positions add.
        mask: who may attend to whom.
        scale: factor of the scores' dot products.
        dropout: probability with which a weight is dropped.
        engine: ``"auto"`` or a name in ``ENGINES``.
        weights: whether the attention weights are wanted; only ``eager`` has them, so it then serves every engine.

    Returns:
        The output ``[batch, heads, queries, value_dim]`` and the weights ``[batch, heads, queries, keys]``, or None
        where they are not wanted.

    Raises:
        ValueError: if the mask does not fit the queries and keys, or the engine asked for cannot take the case.
    """
    mask.check(query.shape, key.shape)
    if (terms.is_empty or query.numel() == 0) and not weights:
        return plain.attend(query, key, value, mask, scale=scale, dropout=dropout)
    if weights:
        return eager.attend(query, key, value, terms, mask, scale=scale, dropout=dropout, weights=True)
    if engine == "auto" and single.takes(query, terms, mask, dropout):
        return single.attend(query, key, value, terms, mask, scale=scale)
    name = choose(engine, query, key, value, terms, mask, dropout)
    return ENGINES[name](query, key, value, terms, mask, scale=scale, dropout=dropout)


def choose(
    engine: str, query: Tensor, key: Tensor, value: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float
) -> str:
    """The engine that runs: the one asked for, or for ``"auto"`` the fastest one that is exact; logged once each.

    Raises:
        ValueError: if the one asked for cannot take the case.
    """
    refusal = REFUSES[engine](query, value, terms, mask, dropout) if engine in REFUSES else None
    if refusal is not None:
        raise ValueError(
            f"The engine {engine!r} cannot take {refusal}. Use engine='auto', which picks one that can, or "
            "'blockwise', which takes everything."
        )
    if engine != "auto":
        return engine
    name = next(
        name
        for name in by_speed(query, key, terms, mask, dropout)
        if name not in REFUSES or REFUSES[name](query, value, terms, mask, dropout) is None
    )
    if not torch.compiler.is_compiling():
        logger.info_once("hf_relpos: engine 'auto' runs %r.", name)
    return name


def by_speed(query: Tensor, key: Tensor, terms: RelativeTerms, mask: AttentionMask, dropout: float) -> list[str]:
    """The engines for a case, the fastest first; some may not be able to take it, the last one can."""
    queries, keys = query.shape[2], key.shape[2]
    only_bias = terms.query is None and terms.key is None and terms.value is None
    fixed_bias = only_bias and not toeplitz.learns(terms)
    last = "eager" if queries * keys <= EAGER_SCORES else "blockwise"
    if dropout > 0:
        short = SHORT_BIAS_DROPPING if only_bias else SHORT_DROPPING
    else:
        short = SHORT_FIXED_BIAS if fixed_bias else SHORT_BIAS if only_bias else SHORT
    if query.device.type != "cpu" or (queries < short and last == "eager"):
        return [last]  # on other devices nothing has been measured
    names = ["dense", last]
    if mask.window is not None or queries >= (LONG_CAUSAL if mask.causal else LONG):
        names.insert(0, "banded")
    if fixed_bias:
        names.insert(0, "toeplitz")
    return names
