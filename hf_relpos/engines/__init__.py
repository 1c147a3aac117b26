"""The engines: one file each, all computing the same function. None of them knows a scheme.

To add one: a file with an ``attend`` like :func:`hf_relpos.engines.eager.attend`, a row in ``ENGINES``, what it cannot
take in ``REFUSES``, and its place in :func:`choose`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.utils import logging

from hf_relpos.engines import banded, blockwise, eager, plain
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

logger = logging.get_logger(__name__)

ENGINES: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "eager": eager.attend,
    "blockwise": blockwise.attend,
    "banded": banded.attend,
}

# What of a case an engine cannot take exactly, in words, or None; engines that take everything are not here.
REFUSES: dict[str, Callable[..., str | None]] = {"banded": banded.refuses}

# From so many queries on, the banded engine is faster than the eager one.
BANDED_QUERIES = 256

# Below this many scores per head, holding them all is faster than computing them again in the backward pass.
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
    if query.shape[2] >= BANDED_QUERIES and banded.refuses(query, value, terms, mask, dropout) is None:
        name = "banded"
    elif query.shape[2] * key.shape[2] <= EAGER_SCORES:
        name = "eager"
    else:
        name = "blockwise"
    if not torch.compiler.is_compiling():
        logger.info_once("hf_relpos: engine 'auto' runs %r.", name)
    return name
