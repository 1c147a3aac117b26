"""What one attention layer owns: its schemes and its gate, as the child module ``relpos``."""

from __future__ import annotations

from functools import reduce
from operator import add

from torch import Tensor, nn

from hf_relpos.config import RelPosConfig
from hf_relpos.gates import GATES
from hf_relpos.schemes import AttentionGeometry
from hf_relpos.terms import RelativeTerms


class RelPosLayer(nn.Module):
    """The relative positions of one attention layer (or of several that share them).

    Args:
        config: all the choices.
        geometry: the attention it sits in.
        active: False for a layer that ``config.layers`` leaves out; it then has no parameters, and only passes the
            native bias on.

    Raises:
        RelPosConfigError: if a scheme cannot act in this attention.
    """

    def __init__(self, config: RelPosConfig, geometry: AttentionGeometry, active: bool = True) -> None:
        super().__init__()
        self.config = config
        schemes = config.scheme_configs if active else ()
        self.schemes = nn.ModuleList(scheme.build(geometry) for scheme in schemes)
        gate = GATES[config.gate]
        self.gate = gate(geometry) if gate is not None and active else None

    def forward(self, query: Tensor, native_bias: Tensor | None = None) -> RelativeTerms:
        """The layer's terms as its parameters are now.

        Every parameter is read in here: hooks that bring parameters to the device (offloading, sharding) act around
        ``forward``, and an attribute read from outside would meet a placeholder.

        Args:
            query: ``[batch, heads, queries, head_dim]``, for the token gate.
            native_bias: ``[heads, 2k + 1]``, the bias the model was pretrained with, or None.
        """
        terms = reduce(add, [scheme() for scheme in self.schemes]) if self.schemes else RelativeTerms()
        if self.gate is not None:
            terms = self.gate(terms, query)
        return terms if native_bias is None else terms.with_native_bias(native_bias)

    def extra_repr(self) -> str:
        """The choices that no child module shows."""
        shown = [f"engine={self.config.engine!r}"]
        if self.config.window is not None:
            shown.append(f"window={self.config.window}")
        return ", ".join(shown)
