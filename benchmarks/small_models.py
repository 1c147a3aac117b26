"""A small GPT-2 and a small T5, trained here in a few minutes on BBC news, with the positions of their families.

GPT-2 learns absolute positions for `POSITIONS` tokens and predicts the next token. T5 has its bias, and writes out a
text some of whose tokens are hidden from it. Every run gives the same models, on one machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

# Makes what a model is given, labels included, of windows of tokens, and of the position of each one's first token.
Batch = Callable[..., dict[str, Tensor]]

VOCABULARY, END, HIDDEN = 258, "<end>", "<hidden>"  # bytes, so that order matters from the first
POSITIONS, SHORT = 256, 16
BATCH, RATE, WARM_UP = 2048, 3e-3, 50
HIDDEN_SHARE = 0.15  # of the tokens that T5 is given


class Hide:
    """What T5 learns: a text from one in which some tokens are hidden.

    Args:
        hidden: stands where a token was.
    """

    def __init__(self, hidden: int):
        self.hidden = hidden
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, windows: Tensor, first: Tensor | None = None) -> dict[str, Tensor]:
        """``input_ids`` and ``labels``, ``[windows, length]``; other tokens are hidden each time."""
        away = torch.rand(windows.shape, generator=self.generator) < HIDDEN_SHARE
        return {"input_ids": windows.masked_fill(away, self.hidden), "labels": windows}


def predict(windows: Tensor, first: Tensor | None = None) -> dict[str, Tensor]:
    """What GPT-2 learns: the next token of ``[windows, length]``, from position 0 or from ``first``, ``[windows]``."""
    batch = {"input_ids": windows, "labels": windows}
    if first is not None:
        batch["position_ids"] = first[:, None] + torch.arange(windows.shape[1])
    return batch


def tokenizer_of(
    texts: Iterable[str], vocabulary: int | None = None, *, adds_end: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of these texts; its first token ends a text, and pads.

    Args:
        texts: the vocabulary is made of them.
        vocabulary: how many tokens there are, ``VOCABULARY`` by default; with 258 nothing is merged: they are bytes.
        adds_end: whether it puts the end after every text, as T5's does.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary or VOCABULARY,
        special_tokens=[END, HIDDEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    if adds_end:
        made.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END, mask_token=HIDDEN)


def stream(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All tokens of the texts, one text after the other, each with an end."""
    rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return torch.tensor([token for row in rows for token in (*row, tokenizer.eos_token_id)])


def small_gpt2(seed: int = 0, positions: int = POSITIONS) -> GPT2LMHeadModel:
    """Random weights."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=positions, n_embd=128, n_layer=4, n_head=4, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def small_t5() -> T5ForConditionalGeneration:
    """Random weights."""
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=384, num_layers=3, num_heads=4, dropout_rate=0.0,
            pad_token_id=0, eos_token_id=0, decoder_start_token_id=0,
        )
    )  # fmt: skip


def train(model: PreTrainedModel, tokens: Tensor, make: Batch, steps: int) -> PreTrainedModel:
    """Learn from windows drawn anywhere in a stream, the same ones for each model.

    Half of the steps with windows of ``SHORT`` tokens, anywhere among the positions, as what is near is learned much
    faster there; then with ``POSITIONS`` tokens. AdamW; the rate rises over the first steps and falls to zero. The
    model is in evaluation mode afterwards.

    Args:
        model: is trained in place.
        tokens: the stream.
        make: what the model is given of windows.
        steps: batches of ``BATCH`` tokens.
    """
    draw = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, (steps - step) / max(1, steps - WARM_UP))
    )
    model.train()
    for step in range(steps):
        length = SHORT if step < steps // 2 else POSITIONS
        rows = range(BATCH // length)
        starts = [draw.randrange(len(tokens) - length + 1) for _ in rows]
        first = torch.tensor([draw.randrange(POSITIONS - length + 1) for _ in rows])
        loss = model(**make(torch.stack([tokens[start : start + length] for start in starts]), first)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def windows_of(tokens: Tensor, length: int) -> Tensor:
    """A stream in windows side by side, ``[windows, length]``; what is left over is dropped."""
    return tokens[: len(tokens) // length * length].view(-1, length)


@torch.inference_mode()
def loss_over(model: PreTrainedModel, windows: Tensor, make: Batch) -> float:
    """The mean loss over the tokens of ``[windows, length]``; GPT-2 has no loss for the first of a window."""
    batches = windows.split(max(1, BATCH // windows.shape[1]))
    losses = [model(**make(some)).loss.item() * len(some) for some in batches]
    return sum(losses) / len(windows)
