"""The engines: one file each, all computing the same function. None of them knows a scheme.

To add one: a file that ends in its record (:class:`hf_relpos.engines.engine.Engine`), its place in ``ENGINES``, and its
name in ``hf_relpos.names``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.utils import logging

from hf_relpos.engines import blockwise, eager, fused, plain, unseen
from hf_relpos.engines.engine import Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms

logger = logging.get_logger(__name__)

# By name, in order of preference: "auto" runs the first that pays off and takes the case. Users know those of
# `hf_relpos.names.ENGINE_NAMES`.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (fused.ENGINE, plain.ENGINE, eager.ENGINE, blockwise.ENGINE)
}


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
        engine: one of ``hf_relpos.names.ENGINE_NAMES``.
        weights: whether the attention weights are wanted; only ``eager`` has them, so it then serves every engine.

    Returns:
        The output ``[batch, heads, queries, value_dim]`` and the weights ``[batch, heads, queries, keys]``, or None
        where they are not wanted.

    Raises:
        ValueError: if the mask does not fit the queries and keys, or the engine asked for cannot take the case.
    """
    mask.check(query.shape, key.shape)
    name = "eager" if weights else choose(engine, Case(query, key, value, terms, mask, dropout))
    options = {"weights": True} if weights else {}

    def run(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        return ENGINES[name].attend(query, key, value, terms, mask, scale=scale, dropout=dropout, **options)

    return unseen.attend(run, query, key, value, mask, guarded=ENGINES[name].guards)


def choose(engine: str, case: Case) -> str:
    """The engine that runs: the one asked for, or for ``"auto"`` the first that is exact and pays off; logged once.

    Without terms every engine but ``eager`` leaves to PyTorch's own operator what it is not faster at itself.

    Raises:
        ValueError: if the one asked for cannot take the case.
    """
    if engine != "auto" and not (case.is_plain and engine != "eager"):
        refusal = ENGINES[engine].refuses(case)
        if refusal is not None:
            raise ValueError(
                f"The engine {engine!r} cannot take {refusal}. Use engine='auto', which picks one that can, or "
                "'blockwise', which takes everything."
            )
        return engine
    allowed = [one for one in ENGINES.values() if engine in ("auto", one.name) or not one.is_choice]
    chosen = next(one for one in allowed if one.pays_off(case) and one.refuses(case) is None)
    if chosen.is_choice and not torch.compiler.is_compiling():
        logger.info_once("hf_relpos: engine 'auto' runs %r.", chosen.name)
    return chosen.name
