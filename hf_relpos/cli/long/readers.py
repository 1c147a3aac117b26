"""Readers of long texts: what a model with 512 positions, and its converted copy, can make of more tokens.

Every reader takes texts as token ids without special tokens, and gives unit vectors: the mean over all tokens, special
ones included, as MiniLM was trained. Those that need no training are from LongEmbed (Zhu et al. 2024, arXiv 2404.12096,
section 4.1), for tables of absolute positions. With position p of a text of n tokens, T pretrained positions and
s = ceil(n / T):

- windows: pieces of T tokens, special tokens included, each read alone, and the mean of their vectors ("parallel
  context windows");
- repeated: position p mod T ("recurrent positions"; so does Longformer's conversion, Beltagy et al. 2020, section 5);
- grouped: position floor(p / s);
- interpolated: position p / s, in a straight line between the rows of the table ("linear position interpolation").
  The paper fixes s for all texts; here it is each text's own, so that short ones are read as the original reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Ids = tuple[int, ...]
Positions = Callable[[int, int], Tensor]
# A text with special tokens, and the name of the positions that it is read with; "" if it fits.
Vectors = dict[tuple[str, Ids], Tensor]

PRETRAINED = 512
BATCH = 4096  # tokens, or one text
ORIGINAL, WINDOWS, CONVERTED = "original, cut at 512", "windows of 512, mean", "converted, whole"


# Positions of a text of `length` tokens, for a table of `rows`: [length], float32.


def repeated(length: int, rows: int) -> Tensor:
    """From 0 again after each ``rows`` tokens."""
    return (torch.arange(length) % rows).float()


def grouped(length: int, rows: int) -> Tensor:
    """The same one for as many neighbours as it takes."""
    return (torch.arange(length) // math.ceil(length / rows)).float()


def interpolated(length: int, rows: int) -> Tensor:
    """Evenly spread, between whole ones too; none beyond the last row."""
    return (torch.arange(length) / math.ceil(length / rows)).clamp(max=rows - 1)


class PositionTable(nn.Module):
    """A pretrained table of positions that is also read between its rows.

    Args:
        weight: the table, ``[positions, width]``.
    """

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)

    def forward(self, positions: Tensor) -> Tensor:
        """``[..., width]``: rows at whole positions as they are, else a straight line between the two beside it."""
        below = positions.floor().long()
        above = positions.ceil().long()
        return torch.lerp(self.weight[below], self.weight[above], (positions - below)[..., None])


class Encoder:
    """Means of a model's last hidden states, each text computed once.

    Args:
        model: an encoder, as ``AutoModel`` loads it.
        special: ids of the special tokens before and after a text.
        positions: those of the texts that have more tokens than the model has positions; it must then have a
            ``PositionTable``. None: the model needs none.
        known: vectors by what they are of, where several encoders of one model share what is equal: texts that fit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        special: tuple[Ids, Ids],
        positions: Positions | None = None,
        known: Vectors | None = None,
    ):
        self.model = model.eval()
        self.special = special
        self.positions = positions
        self.known: Vectors = {} if known is None else known

    def __call__(self, texts: Sequence[Ids]) -> Tensor:
        """The means, ``[texts, width]``, not normalised."""
        framed = [(*self.special[0], *ids, *self.special[1]) for ids in texts]
        missing = sorted({ids for ids in framed if self._key(ids) not in self.known}, key=len)
        while missing:
            batch = missing[-max(1, BATCH // len(missing[-1])) :]
            del missing[-len(batch) :]
            self.known.update(zip(map(self._key, batch), self._read(batch), strict=True))
        return torch.stack([self.known[self._key(ids)] for ids in framed])

    def _key(self, ids: Ids) -> tuple[str, Ids]:
        return (self.positions.__name__ if self.positions and len(ids) > PRETRAINED else ""), ids

    @torch.inference_mode()
    def _read(self, batch: Sequence[Ids]) -> Tensor:
        longest = max(map(len, batch))
        ids = torch.stack([_padded(torch.tensor(text), longest) for text in batch])
        mask = torch.stack([_padded(torch.ones(len(text), dtype=torch.long), longest) for text in batch])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        if self.positions is not None:
            rows = [_padded(self.positions(len(text), PRETRAINED), longest) for text in batch]
            inputs["position_ids"] = torch.stack(rows)
        hidden = self.model(**inputs).last_hidden_state
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Reader:
    """One way to make a unit vector of a text of any length.

    Args:
        encoder: reads one piece.
        pieces: cuts a text into what is read at a time; the text's vector is the mean of theirs.
    """

    def __init__(self, encoder: Encoder, pieces: Callable[[Ids], list[Ids]]):
        self.encoder = encoder
        self.pieces = pieces

    def __call__(self, texts: Sequence[Ids]) -> Tensor:
        """``[texts, width]``."""
        cut = [self.pieces(ids) for ids in texts]
        vectors = self.encoder([piece for pieces in cut for piece in pieces])
        means = [each.mean(0) for each in vectors.split([len(pieces) for pieces in cut])]
        return normalize(torch.stack(means), dim=-1)


def whole(ids: Ids) -> list[Ids]:
    """The text in one piece."""
    return [ids]


def first(room: int) -> Callable[[Ids], list[Ids]]:
    """One piece, of the first ``room`` tokens."""
    return lambda ids: [ids[:room]]


def windows(room: int) -> Callable[[Ids], list[Ids]]:
    """Pieces of ``room`` tokens side by side, the last one of what is left; a text without tokens is one piece."""
    return lambda ids: [ids[start : start + room] for start in range(0, max(1, len(ids)), room)]


def readers(
    tokenizer: PreTrainedTokenizerBase,
    original: Any,
    converted: PreTrainedModel | None = None,
    known: Vectors | None = None,
) -> dict[str, Reader]:
    """All readers by name.

    Args:
        tokenizer: of all of them.
        original: BERT with ``PRETRAINED`` positions; its table of these is replaced.
        converted: its converted copy; without it, it is not among the readers.
        known: what the original is known to make of texts, which its readers add to.
    """
    special = (tokenizer.cls_token_id,), (tokenizer.sep_token_id,)
    original.embeddings.position_embeddings = PositionTable(original.embeddings.position_embeddings.weight)
    known = {} if known is None else known
    room = PRETRAINED - 2
    # What fits is read alike with each of them.
    plain = Encoder(original, special, repeated, known)
    made = {ORIGINAL: Reader(plain, first(room)), WINDOWS: Reader(plain, windows(room))}
    for positions in (repeated, grouped, interpolated):
        made[f"positions {positions.__name__}"] = Reader(Encoder(original, special, positions, known), whole)
    if converted is not None:
        made[CONVERTED] = Reader(Encoder(converted, special), whole)
    return made


def _padded(row: Tensor, length: int) -> Tensor:
    return pad(row, (0, length - len(row)))
