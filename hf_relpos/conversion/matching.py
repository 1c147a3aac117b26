"""How far the converted model is from the original on a batch: the loss it learns from.

Matching the hidden states of every layer is the layer-wise distillation of Jiao et al. 2020, "TinyBERT: Distilling BERT
for Natural Language Understanding", equation 8 (https://arxiv.org/abs/1909.10351), here with equal layers and each
layer's error relative to the size of its states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hf_relpos.conversion.reading import Reading


@dataclass(frozen=True)
class Matching:
    """What is matched, and how much each part counts.

    The last layer, and the embedding of what the original can read, count nothing by default: both follow from the
    states, and what is learned of them from a few sequences a step is noise beside those (docs/convert.md has the
    figures).

    Attributes:
        states: hidden states, mean over all layers.
        last: hidden states of each stack's last layer, on top of that.
        embedding: the embedding of the whole sequence.
        long_embedding: that of a sequence longer than the original reads, in the second stage, where no head says
            something of each token. What the original makes of a token there goes by the window it is read in, by as
            much as the copy is off; of the whole, hardly.
        logits: what the head says, where there is one.
    """

    states: float = 1.0
    last: float = 0.0
    embedding: float = 0.0
    logits: float = 1.0
    long_embedding: float = 0.1

    def loss(self, student: Reading, teacher: Reading, weights: Tensor) -> Tensor:
        """The weighted sum over the rows of a batch.

        Args:
            student: what the model in conversion makes of the batch.
            teacher: what the original makes of it; decides which stacks, tokens and outputs are compared.
            weights: ``[rows]``.
        """
        rows = torch.zeros_like(weights)
        for name, layers in teacher.states.items():
            errors = [
                relative_error(mine, theirs, teacher.masks[name])
                for mine, theirs in zip(student.states[name][1:], layers[1:], strict=True)
            ]
            rows = rows + self.states * torch.stack(errors).mean(0) + self.last * errors[-1]
        weight = self.embedding + (self.long_embedding if teacher.in_windows and teacher.logits is None else 0.0)
        if weight:
            cosine = functional.cosine_similarity(student.embedding.float(), teacher.embedding.float(), dim=-1)
            rows = rows + weight * (1 - cosine)
        if self.logits and teacher.logits is not None and student.logits is not None:
            rows = rows + self.logits * divergence(student.logits, teacher.logits, teacher)
        return (rows * weights).sum()


def relative_error(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """The squared distance of states ``[rows, length, dim]`` over their squared size, ``[rows]``."""
    weights = mask[..., None].float()
    teacher = teacher.float()
    distance = ((student.float() - teacher).square() * weights).sum((1, 2))
    return distance / (teacher.square() * weights).sum((1, 2)).clamp(min=1e-12)


def divergence(student: Tensor, teacher: Tensor, reading: Reading) -> Tensor:
    """The Kullback-Leibler divergence of what a head predicts, in nats, mean over the tokens of a row: ``[rows]``.

    Args:
        student: logits ``[rows, length, classes]`` or ``[rows, classes]``.
        teacher: logits of the same shape, from which the divergence is taken.
        reading: the original's, whose last stack the logits of tokens are of.
    """
    theirs, mine = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    each = functional.kl_div(mine, theirs, reduction="none", log_target=True).sum(-1)
    if each.ndim == 1:
        return each
    mask = list(reading.masks.values())[-1].to(each)
    return (each * mask).sum(1) / mask.sum(1).clamp(min=1)
