"""A scheme's module is tried before it goes into a model: what it makes of a small call is what its config says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.errors import RelPosConfigError
from hf_relpos.masks import AttentionMask
from hf_relpos.schemes.base import TABLES, AttentionGeometry, Scheme, SchemeConfig
from hf_relpos.terms import RelativeTerms

LENGTH = 3  # of the call


def built(config: SchemeConfig, geometry: AttentionGeometry) -> Scheme:
    """The module of a scheme for one attention layer, if it is one, and does what the config says.

    On the meta device, and where parameters are placeholders of what is spread over processes, there are no values to
    try it with; a model that is loaded was patched before.

    Raises:
        RelPosConfigError: for what is none, or does something else; says what it must be. Also what ``build`` refuses.
    """
    module = config.build(geometry)
    misfit = _misfit(config, module, geometry)
    if misfit is not None:
        raise RelPosConfigError(f"The scheme {config.name!r} ({type(config).__name__}) {misfit}.")
    return module


def _misfit(config: SchemeConfig, module: object, geometry: AttentionGeometry) -> str | None:
    """What is wrong with it, as the rest of a sentence; None if nothing is."""
    if not isinstance(module, Scheme):
        return f"builds a {type(module).__name__}, but must build a hf_relpos.schemes.Scheme"
    parameters = [name for name, _ in module.named_parameters()]
    if bool(parameters) != config.learns:
        has = f"has the parameters {', '.join(parameters)}" if parameters else "has no parameters"
        return f"says learns={config.learns}, but its module {has}"
    lost = sorted({name for name, _ in module.named_buffers()} - module.state_dict().keys())
    if lost:
        return (
            f"keeps {', '.join(lost)} in buffers that are not saved (persistent=False), which hold anything after a "
            "model is loaded. Compute them where they are used, or save them"
        )
    states = torch.zeros(1, geometry.num_heads, LENGTH, geometry.head_dim)
    if any(tensor.is_meta or not tensor.numel() for tensor in (states, *module.parameters(), *module.buffers())):
        return None
    mask = AttentionMask(LENGTH, LENGTH, causal=geometry.causal)
    with torch.no_grad():
        made = module(AttentionCall(states, states, states, mask))
    return _other_than_said(config, made, states)


def _other_than_said(config: SchemeConfig, made: Contribution, states: Tensor) -> str | None:
    """In what a contribution differs from what the config says."""
    _, heads, _, dim = states.shape
    if not isinstance(made.terms, RelativeTerms):
        given = type(made.terms).__name__  # type: ignore[unreachable]  # of somebody else's, who may not check types
        return f"gives a {given} as tables, but must give a RelativeTerms of hf_relpos.terms"
    tables, said = made.terms.named, config.parts & TABLES
    if tables.keys() != said:
        return f"gives {_listed(tables)} as tables, but its `parts` have {_listed(said)}"
    for name, table in tables.items():
        columns = () if name == "bias" else (dim,)
        fits = table.ndim == 2 + len(columns) and table.shape[0] in (1, heads) and table.shape[1] % 2 == 1
        if not fits or tuple(table.shape[2:]) != columns:
            wanted = ", ".join(map(str, (f"{heads} or 1", "2k + 1", *columns)))
            return f"gives {name!r} the shape {list(table.shape)}, but it must be [{wanted}]"
    if (made.branch is not None) != ("branch" in config.parts):
        return f"gives {'a' if made.branch is not None else 'no'} branch, but its `parts` are {_listed(config.parts)}"
    for name, tensor in {"query": made.query, "key": made.key, "branch": made.branch}.items():
        if tensor is not None and tensor.shape != states.shape:
            return f"gives {name} the shape {list(tensor.shape)} for states of {list(states.shape)}"
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"
