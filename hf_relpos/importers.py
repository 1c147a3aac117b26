"""Opens checkpoints of others whose relative positions have a place here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError, UnsupportedModelError
from hf_relpos.families import Family, family_of, supported_in_words
from hf_relpos.modeling.stacks import stacks_of
from hf_relpos.patching import patch_model
from hf_relpos.schemes import RelativeKeyQuery, SchemeConfig, Shaw

# The vectors in such a checkpoint: a child of each self-attention module.
DISTANCES = "distance_embedding"

# What `from_pretrained` takes that is no change of the config: where to find a checkpoint, and the weights' dtype.
NOT_IN_CONFIG = ("cache_dir", "dtype", "force_download", "local_files_only", "revision", "subfolder", "token")


def load_relative_key(name: str | os.PathLike[str], auto_class: Any = AutoModel, **kwargs: Any) -> PreTrainedModel:
    """Load a BERT-like checkpoint with ``position_embedding_type`` ``"relative_key"`` or ``"relative_key_query"``.

    Transformers removed these in its fifth version, and loads such a checkpoint as if it had none. The model that this
    returns computes what the fourth did: vectors per offset, inside the scale of the scores, and nothing of the
    absolute table, which the checkpoint holds but never used. Offsets beyond the trained length, where the fourth
    version failed, read the vector of the farthest.

    Args:
        name: folder of the checkpoint, or its id on the Hub.
        auto_class: an Auto class, or a stock model's class, such as ``AutoModelForMaskedLM`` or ``BertForMaskedLM``.
        **kwargs: what ``from_pretrained`` takes besides, changes of the config included.

    Returns:
        A patched model, to be saved and loaded like any other.

    Raises:
        PatchStateError: if the checkpoint has no such positions.
        UnsupportedModelError: if its family is not supported.
    """
    apart = {key: kwargs.pop(key) for key in NOT_IN_CONFIG if key in kwargs}
    config = kwargs.pop("config", None)
    if config is None:
        where = {key: value for key, value in apart.items() if key != "dtype"}
        config, kwargs = AutoConfig.from_pretrained(name, **where, **kwargs, return_unused_kwargs=True)
    scheme = _scheme_of(config, name)
    with torch.device("meta"):
        base = type(auto_class.from_config(config) if hasattr(auto_class, "from_config") else auto_class(config))
    family = family_of(base)
    if family is None:
        raise UnsupportedModelError(
            f"{base.__name__}, the model in {str(name)!r}, is of no supported family. {supported_in_words()}"
        )
    model, loading = _with_distances(base, family).from_pretrained(
        name, config=config, **{**kwargs, **apart}, output_loading_info=True
    )
    missing = sorted(key for key in loading["missing_keys"] if DISTANCES in key)
    if missing:
        raise PatchStateError(
            f"{str(name)!r} says position_embedding_type={config.position_embedding_type!r}, but has no {missing[0]!r}."
        )
    model.__class__ = base
    attentions = list(_self_attentions(model, family))
    # An offset is key less query here, and was query less key there.
    tables = [attention._modules.pop(DISTANCES).weight.detach().flip(0) for attention in attentions]
    del model.config.position_embedding_type
    patch_model(model, RelPosConfig(scheme, native="drop", gate="none"))
    with torch.no_grad():
        for attention, table in zip(attentions, tables, strict=True):
            (parameter,) = attention.relpos.parameters()
            parameter.copy_(table[None])
    return model


def _scheme_of(config: Any, name: str | os.PathLike[str]) -> SchemeConfig:
    """The scheme whose table holds a vector for each offset in the trained length."""
    kind = getattr(config, "position_embedding_type", "absolute")
    if kind == "relative_key":
        return Shaw(max_distance=config.max_position_embeddings - 1, value=False)
    if kind == "relative_key_query":
        return RelativeKeyQuery(max_distance=config.max_position_embeddings - 1)
    raise PatchStateError(
        f"The config of {str(name)!r} says position_embedding_type={kind!r}, but must say 'relative_key' or "
        "'relative_key_query' to be loaded so. Load it with from_pretrained, and patch it with hf_relpos.patch_model."
    )


def _with_distances(base: Any, family: Family) -> Any:
    """A stock model's class with a place for the vectors, so that they are loaded like all else."""

    class WithDistances(base):
        def post_init(self) -> None:
            rows = 2 * self.config.max_position_embeddings - 1
            for attention in _self_attentions(self, family):
                setattr(attention, DISTANCES, nn.Embedding(rows, family.geometry(attention).head_dim))
            super().post_init()

    WithDistances.__name__ = base.__name__
    return WithDistances


def _self_attentions(model: PreTrainedModel, family: Family) -> Iterator[Any]:
    return (attention for stack in stacks_of(model, family) for attention in stack.attentions)
