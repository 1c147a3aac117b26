"""What the card of a converted model says that cannot be read off the model; :mod:`hf_relpos.conversion` fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Conversion:
    """How a model was converted, and what came of it.

    Attributes:
        longest: the length of the longest sequences it learned from, in tokens.
        fidelity: how near it is to the original, in Markdown.
        training: how it was taught, as rows of a table.
    """

    longest: int
    fidelity: str
    training: Mapping[str, str]

    @property
    def limit(self) -> str:
        """How long the sequences are that it is known to read."""
        return (
            f"It learned from sequences of up to {self.longest} tokens. It takes longer ones, but what it makes of "
            "them was not measured."
        )
