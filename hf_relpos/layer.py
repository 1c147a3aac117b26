"""What one attention layer owns: its schemes and its gate, as the child module ``relpos``."""

from __future__ import annotations

from torch import Tensor, nn

from hf_relpos.calls import AttentionCall, Contribution
from hf_relpos.config import RelPosConfig
from hf_relpos.gates import GATES
from hf_relpos.schemes import AttentionGeometry, Scheme, SchemeConfig
from hf_relpos.schemes.base import TABLES
from hf_relpos.schemes.trial import built
from hf_relpos.terms import RelativeTerms


class RelPosLayer(nn.Module):
    """The relative positions of one attention layer (or of several that share them).

    Args:
        config: all the choices.
        geometry: the attention it sits in.
        active: False for a layer that ``config.layers`` leaves out; it then has no parameters, and only passes the
            native bias on.

    Raises:
        RelPosConfigError: if a scheme cannot act in this attention, or is not what it says.
    """

    def __init__(self, config: RelPosConfig, geometry: AttentionGeometry, active: bool = True) -> None:
        super().__init__()
        self.config = config
        schemes = config.scheme_configs if active else ()
        self.schemes = nn.ModuleList(
            built(scheme, geometry) if _acts(scheme, geometry) else Scheme() for scheme in schemes
        )
        gate = GATES[config.gate]
        has_terms = any(scheme.parts & TABLES and _acts(scheme, geometry) for scheme in schemes)
        self.gate = gate(geometry) if gate is not None and has_terms else None

    def forward(self, call: AttentionCall, native_bias: Tensor | None = None) -> Contribution:
        """What the layer's schemes make of a call together, as their parameters are now.

        Every parameter is read in here: hooks that bring parameters to the device (offloading, sharding) act around
        ``forward``, and an attribute read from outside would meet a placeholder.

        Args:
            call: the queries, keys, values and mask.
            native_bias: ``[heads, 2k + 1]``, the bias the model was pretrained with, or None.
        """
        terms, query, key, branch = None, call.query, call.key, None
        for scheme in self.schemes:
            part: Contribution = scheme(call)
            terms = part.terms if terms is None else terms + part.terms
            if part.query is not call.query:  # the one that rotates, see RelPosConfig
                query, key = part.query, part.key
            if part.branch is not None:
                branch = part.branch if branch is None else branch + part.branch
        if terms is None:
            terms = RelativeTerms()
        gate = self.gate
        if gate is not None:
            terms = gate(terms, call.query)
        if native_bias is not None:
            terms = terms.with_native_bias(native_bias)
        return Contribution(terms, query, key, branch)

    def extra_repr(self) -> str:
        """The choices that no child module shows."""
        shown = [f"engine={self.config.engine!r}"]
        if self.config.window is not None:
            shown.append(f"window={self.config.window}")
        return ", ".join(shown)


def _acts(scheme: SchemeConfig, geometry: AttentionGeometry) -> bool:
    return scheme.first_layers is None or geometry.layer < scheme.first_layers
