"""What a model makes of a batch: hidden states after every layer, logits, an embedding of the whole.

The original reads what is too long for it in overlapping windows; what it says of their middles is put together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_relpos.conversion.batches import Batch, Window

# Makes an embedding [rows, dim] of the last states [rows, length, dim] and their mask [rows, length].
Pool = Callable[[Tensor, Tensor], Tensor]

STACKS = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")


@dataclass(frozen=True)
class Reading:
    """What a model makes of a batch.

    Attributes:
        states: for each stack, the states ``[rows, length, dim]`` after the embeddings and after every layer.
        masks: for each stack, ``[rows, length]``, 1 for the tokens that states are known of.
        logits: of the model's head, if it has one that gives some: ``[rows, length, classes]`` or ``[rows, classes]``.
        embedding: ``[rows, dim]``.
        in_windows: whether it was put together from windows.
    """

    states: dict[str, tuple[Tensor, ...]]
    masks: dict[str, Tensor]
    logits: Tensor | None
    embedding: Tensor
    in_windows: bool = False


def mean_of_states(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states of the tokens that are no padding, ``[rows, dim]``."""
    weights = mask[..., None].to(states)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def on_device(batch: Batch, model: nn.Module) -> Batch:
    """A batch where a model is."""
    device = next(model.parameters()).device
    moved: Batch = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    if "window_inputs" in batch:
        moved["window_inputs"] = on_device(batch["window_inputs"], model)
    return {**batch, **moved}


def read(model: nn.Module, batch: Batch, pool: Pool) -> Reading:
    """Read a batch as it is.

    Args:
        model: of Transformers, or a wrapper around one that passes on what it is called with.
        batch: as :meth:`hf_relpos.conversion.batches.Frame.batch` makes it.
        pool: makes the embedding.
    """
    inputs = {name: value for name, value in batch.items() if name.endswith(("input_ids", "attention_mask"))}
    out = model(**inputs, **_without_cache(model), output_hidden_states=True)
    states = {name: tuple(out[name]) for name in STACKS if out.get(name) is not None}
    masks = {
        name: batch["decoder_attention_mask" if name.startswith("decoder") else "attention_mask"] for name in states
    }
    first = next(iter(states))
    return Reading(states, masks, out.get("logits"), pool(states[first][-1], masks[first]))


def read_as_original(model: nn.Module, batch: Batch, pool: Pool) -> Reading:
    """Read a batch as the original can, without gradients: in windows where it is too long.

    Of a long batch there are the states of the first stack only, and logits only where they are of its tokens; its
    embeddings are the means of those of the windows.
    """
    with torch.no_grad():
        if "windows" not in batch:
            return read(model, batch, pool)
        windows: list[Window] = batch["windows"]
        inputs = dict(batch["window_inputs"])
        for name in ("decoder_input_ids", "decoder_attention_mask"):
            if name in batch:
                inputs[name] = batch[name][[window.row for window in windows]]
        parts = read(model, inputs, pool)
        join = partial(_joined, windows, batch["attention_mask"].shape)
        name, layers = next(iter(parts.states.items()))
        logits = parts.logits if len(parts.states) == 1 else None
        if logits is not None and logits.ndim != 3:
            logits = None
        rows = [
            [number for number, window in enumerate(windows) if window.row == row]
            for row in range(len(batch["input_ids"]))
        ]
        return Reading(
            {name: tuple(map(join, layers))},
            {name: join(inputs["attention_mask"][..., None])[..., 0]},
            None if logits is None else join(logits),
            torch.stack([parts.embedding[numbers].mean(0) for numbers in rows]),
            in_windows=True,
        )


def _joined(windows: Sequence[Window], shape: tuple[int, int], parts: Tensor) -> Tensor:
    """What is believed of windows ``[windows, tokens, size]``, where it belongs: ``[rows, length, size]``, else 0."""
    whole = parts.new_zeros(*shape, parts.shape[-1])
    for window, part in zip(windows, parts, strict=True):
        whole[window.row, window.target : window.target + window.count] = part[
            window.source : window.source + window.count
        ]
    return whole


def _without_cache(model: Any) -> dict[str, Any]:
    """The argument that keeps a decoder from filling a cache, which nobody reads."""
    inner = getattr(model, "module", model)  # of what spreads a model over processes
    return {"use_cache": False} if "use_cache" in inspect.signature(inner.forward).parameters else {}
