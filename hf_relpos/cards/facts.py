"""What a model card says of a patched model that can be read off the model: its schemes, its limits, its training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_relpos.compat.transformers import unmark_initialized
from hf_relpos.modeling import state
from hf_relpos.modeling.stacks import stacks_of
from hf_relpos.names import TYPE_PREFIX
from hf_relpos.schemes import AttentionGeometry, SchemeConfig
from hf_relpos.schemes.base import TABLES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NATIVE = {
    "keep": "kept as they were",
    "gate": "kept, times a learned number that started at 1",
    "drop": "dropped",
}

GATE = {
    "none": "fixed",
    "head": "one learned gate per layer and head, started at 1",
    "token": "a gate computed from each token's query, per head, started at 1",
}


def family_of(model: PreTrainedModel) -> str:
    """The name of the model's family: BERT, GPT2, T5, ..."""
    return model.config.model_type.removeprefix(TYPE_PREFIX).upper()


def describe_scheme(scheme: Mapping[str, Any]) -> str:
    """A scheme and its settings."""
    fields = ", ".join(f"{name}={value!r}" for name, value in scheme.items() if name != "type")
    return f"`{scheme['type']}` ({fields})" if fields else f"`{scheme['type']}`"


def settings(relpos: Mapping[str, Any]) -> dict[str, str]:
    """The remaining fields of the config."""
    window, layers = relpos["window"], relpos["layers"]
    return {
        "window": "none, every token is seen" if window is None else f"{window} tokens to each side",
        "layers": "all" if layers is None else ", ".join(map(str, layers)),
        "tables and gates": "shared by the layers" if relpos["share_layers"] else "one set per layer",
        "engine": relpos["engine"],
        "written by": f"hf_relpos {relpos['version']}",
    }


def limits(model: PreTrainedModel, trained_length: int | None, trained: bool | None) -> list[str]:
    """What the model cannot do, a sentence each."""
    config = state.check_config(model)
    found = []
    if config.native != "drop" and trained_length is not None:
        found.append(
            f"Inputs of more than {trained_length} tokens are refused: the pretrained positions end there. "
            "A copy that reads longer ones is made by `hf_relpos.convert`, with texts without labels."
        )
    if config.window is not None:
        found.append(f"A token sees the {config.window} tokens next to it in each layer, and none beyond.")
    found += [
        _horizon_in_words(scheme, _geometries(model)) for scheme in config.scheme_configs if scheme.horizon is not None
    ]
    if trained is False:
        found.append("The relative tables are at their start values until the model is fine-tuned.")
    found.append("Everything that holds for the model it was made from (data, language, biases) holds here as well.")
    return found


def was_trained(model: PreTrainedModel) -> bool | None:
    """Whether what the patch added has left its start values; None if that cannot be told.

    Parameters that start at random values, or are not in memory here (offloaded, sharded), tell nothing.
    """
    answer = None
    owners = dict.fromkeys(owner for _, owner, _ in state.added_parameters(model))
    for module in (owner for owner in owners if hasattr(owner, "reset_relpos_parameters")):
        own = dict(module.named_parameters(recurse=False))
        if not all(_is_here(parameter) for parameter in own.values()):
            return None
        first, second = _two_starts(module)
        for name, parameter in own.items():
            if not torch.equal(first[name], second[name]):
                continue
            if not torch.equal(first[name], parameter.detach().cpu()):
                return True
            answer = False
    return answer


def _is_here(parameter: nn.Parameter) -> bool:
    plain = type(parameter.data) is Tensor
    return plain and parameter.device.type != "meta" and parameter.numel() > 0


def _two_starts(module: nn.Module) -> list[dict[str, Tensor]]:
    """A module's parameters as they could start, twice: without touching it, or the caller's random numbers."""
    starts = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            twin: Any = copy.deepcopy(module).cpu()
            unmark_initialized(twin)
            twin.reset_relpos_parameters()
            starts.append({name: parameter.detach() for name, parameter in twin.named_parameters(recurse=False)})
    return starts


def _geometries(model: Any) -> list[AttentionGeometry]:
    """One geometry for each direction in the model: bidirectional, causal, or both."""
    stacks = stacks_of(model, model.relpos_family)
    found = [model.relpos_family.geometry(stack.attentions[0]) for stack in stacks]
    return [next(one for one in found if one.causal is causal) for causal in sorted({one.causal for one in found})]


def _horizon_in_words(scheme: SchemeConfig, geometries: list[AttentionGeometry]) -> str:
    horizons = [horizon(scheme, geometry) for geometry in geometries]
    first, *others = dict.fromkeys(horizons)
    decoder = f" ({others[0]} in the decoder)" if others else ""
    return (
        f"`{scheme.name}` does not tell tokens apart that are {first} or more positions away on the same side{decoder}."
    )


@torch.no_grad()
def horizon(scheme: SchemeConfig, geometry: AttentionGeometry) -> int | None:
    """The smallest distance from which on a scheme's tables are constant on each side that can be seen, if any.

    Read off the tables themselves, filled with random numbers: T5's last bucket, for one, begins well before its
    ``max_distance``. A scheme with a horizon and no tables is taken at its word.
    """
    if scheme.horizon is None or not scheme.parts & TABLES:
        return scheme.horizon
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        module = scheme.build(geometry)
        for parameter in module.parameters():
            parameter.normal_()
        terms = module.tables(scheme.horizon, torch.empty(0))
    found = 0
    for table in (terms.bias, terms.query, terms.key, terms.value):
        if table is None:
            continue
        over_offsets = table.movedim(1, 0).flatten(1)
        k = over_offsets.shape[0] // 2
        sides = [over_offsets[: k + 1].flip(0)] + ([] if geometry.causal else [over_offsets[k:]])
        for side in sides:
            differs = (side != side[-1]).any(1).nonzero()
            found = max(found, int(differs.max()) + 1 if len(differs) else 0)
    return found
