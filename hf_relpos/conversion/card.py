"""What a model card says of a conversion, in the words of its readers."""

from __future__ import annotations

from hf_relpos.cards.converted import Conversion
from hf_relpos.conversion.fidelity import FidelityReport

_MATCHED = {
    "states": "the hidden states of every layer",
    "last": "those of the last layer once more",
    "embedding": "the embedding of the whole",
    "logits": "what a head predicts",
    "long_embedding": "the embedding of what the original reads in windows",
}


def for_card(report: FidelityReport) -> Conversion:
    """What `write_model_card(..., conversion=)` takes."""
    return Conversion(report.longest, report.markdown, _training(report))


def _training(report: FidelityReport) -> dict[str, str]:
    given = report.settings
    (alone, together), (first, layers, added) = given["steps"], given["learning_rates"]
    rows = {
        "steps": f"{alone} for tables and gates alone, then {together} for everything",
        "tokens per step": f"about {given['batch_tokens']}",
        "tokens per sequence": ", ".join(map(str, given["lengths"])),
        "peak learning rates": f"{first} for tables and gates alone, then {added} for them and {layers} for the layers",
        "matched, with weights": ", ".join(f"{_MATCHED[name]} ({by})" for name, by in given["matching"].items() if by),
        "start of the tables": given["start"],
        "seed": str(given["seed"]),
    }
    if given["target"] is not None:
        rows["a stage ends at a likeness of"] = str(given["target"])
    return rows
