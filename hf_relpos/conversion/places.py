"""What a place in the sequence adds to the original's states, whatever stands there: nothing that a copy can learn.

The states of a model with absolute positions have a part that goes by the position alone, from layer to layer. Relative
positions cannot tell it, so to match it is to fit noise. And where the original reads a long text in windows, that part
begins anew in each of them. What is learned from are therefore states in which each place has the same mean: that of
all places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hf_relpos.conversion.batches import Batch, Frame
from hf_relpos.conversion.reading import Reading, mean_of_states, on_device, read


@dataclass(frozen=True)
class Places:
    """The mean states at each place, and how to take from a reading what makes them differ.

    The first tokens keep their states: they are special, or known by seeing nothing before them.

    Attributes:
        means: for each stack, after the embeddings and after each layer, ``[places, dim]``; no stack is touched of
            which there are none.
        first: how many tokens keep their states.
        causal: names of the stacks whose tokens see none after them, and so cannot know how long the sequence is: their
            places get the mean of all. Elsewhere they get that of the places in the sequence, which keeps its mean.
    """

    means: Mapping[str, tuple[Tensor, ...]]
    first: int
    causal: frozenset[str]

    def level(self, reading: Reading) -> Reading:
        """The reading with states of equal means."""
        states = dict(reading.states)
        for name, means in self.means.items():
            mask = reading.masks[name].to(means[0]).clone()
            mask[:, : self.first] = 0
            states[name] = tuple(
                layer + self._shift(mask, mean, name in self.causal).to(layer)
                for layer, mean in zip(states[name], means, strict=True)
            )
        return replace(reading, states=states)

    def _shift(self, mask: Tensor, means: Tensor, causal: bool) -> Tensor:
        """What is added to states, ``[rows, length, dim]``."""
        here = means[: mask.shape[1]]
        wanted = (
            means[self.first :].mean(0) if causal else (mask @ here / mask.sum(1, keepdim=True).clamp(min=1))[:, None]
        )
        return (wanted - here) * mask[..., None]


@torch.no_grad()
def mean_states(model: nn.Module, batches: Sequence[Batch], frame: Frame) -> Places:
    """Measure what each place adds.

    Args:
        model: the original, with absolute positions.
        batches: sequences of texts, all as long as the model reads; at the end of a sequence the special tokens take
            what the place before them has.
        frame: how the sequences were made.
    """
    sums: dict[str, list[Tensor]] = {}
    rows = 0
    for batch in batches:
        rows += len(batch["input_ids"])
        for name, layers in read(model, on_device(batch, model), mean_of_states).states.items():
            news = [layer.float().sum(0) for layer in layers]
            sums[name] = [old + new for old, new in zip(sums[name], news, strict=True)] if name in sums else news
    for layer in (layer for layers in sums.values() for layer in layers):
        last = len(layer) - len(frame.suffix)
        layer[last:] = layer[last - 1]
    return Places(
        {name: tuple(layer / rows for layer in layers) for name, layers in sums.items()},
        first=max(1, len(frame.prefix)),
        causal=frozenset(name for name in sums if frame.causal or name.startswith("decoder")),
    )
