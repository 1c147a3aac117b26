"""What a patch did to a model, as a record to print."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from hf_relpos.config import RelPosConfig
from hf_relpos.errors import PatchStateError
from hf_relpos.modeling import state
from hf_relpos.modeling.finding import patched_inside
from hf_relpos.modeling.sharing import relpos_of
from hf_relpos.modeling.stacks import stacks_of


@dataclass(frozen=True, repr=False)
class PatchReport:
    """What a patch did to a model. ``print`` it, or end a cell of a notebook with it.

    Attributes:
        model: the model's class.
        base: the class it had.
        config: all the choices.
        layers: patched layers per stack, by the stack's path (empty for the model itself).
        shared: whether the layers of a stack share their parameters.
        added: number of parameters added.
        total: number of parameters in all.
        trained_length: number of absolute positions it was pretrained with; None if it had none.
        positions: what positions it was pretrained with, in words; None if it had none of any kind.
    """

    model: str
    base: str
    config: RelPosConfig
    layers: dict[str, int]
    added: int
    total: int
    trained_length: int | None
    positions: str | None

    @property
    def num_layers(self) -> int:
        """Patched layers in all."""
        return sum(self.layers.values())

    def __repr__(self) -> str:
        config = self.config
        stacks = ", ".join(f"{count} in {path or 'the model'}" for path, count in self.layers.items())
        rows = {
            "schemes": " + ".join(map(str, config.scheme_configs)),
            "layers": f"{self.num_layers} patched ({stacks})" + (", shared per stack" if config.share_layers else ""),
            "parameters": f"{self.added:,} added to {self.total - self.added:,}",
            "native positions": _native_in_words(config.native, self.positions, self.trained_length),
            "gate": config.gate,
            "window": "none" if config.window is None else f"{config.window} tokens to each side",
            "engine": config.engine,
        }
        width = max(map(len, rows))
        lines = [f"  {name:<{width}}  {value}" for name, value in rows.items()]
        return "\n".join([f"{self.model} (was {self.base})", *lines])


def patch_report(model: PreTrainedModel) -> PatchReport:
    """What was done to a patched model.

    Raises:
        PatchStateError: if the model is not patched.
    """
    if not state.is_patched_model(model):
        raise PatchStateError(
            f"{type(model).__name__} is not patched, so there is nothing to report. {patched_inside(model)}".rstrip()
        )
    family = model.relpos_family
    config = state.check_config(model)
    layers = {}
    for stack in stacks_of(model, family):
        owned = [relpos_of(attention) for attention in stack.attentions]
        layers[stack.path] = sum(layer is not None and len(layer.schemes) > 0 for layer in owned)
    return PatchReport(
        model=type(model).__name__,
        base=model.relpos_original.__name__,
        config=config,
        layers=layers,
        added=sum(parameter.numel() for _, _, parameter in state.added_parameters(model)),
        total=sum(parameter.numel() for parameter in model.parameters()),
        trained_length=family.trained_length(model.config),
        positions=family.native_words,
    )


def _native_in_words(native: str, what: str | None, trained_length: int | None) -> str:
    if what is None:
        return "none"
    bound = "" if trained_length is None else f", at most {trained_length} tokens"
    return {
        "keep": f"kept: {what}{bound}",
        "gate": f"gated: {what} times a learned factor{bound}",
        "drop": f"dropped: {what}; inputs may have any length",
    }[native]
