"""Fine-tuning on long posts: the original at 512 tokens, its converted copy at 1,024, on equally many texts and epochs.

Posts of 20newsgroups of 700 tokens and more, of the classes that have the most of them. The classifier is a layer on
the mean of the last hidden states; both models learn with the same rate, from the same batches in the same order.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks import corpora
from benchmarks.parts import Part, part
from benchmarks.readers import load_converted, minilm
from hf_relpos.cli.long.readers import CONVERTED, ORIGINAL
from hf_relpos.cli.long.tasks import LEAST, Document

LENGTHS = {ORIGINAL: 512, CONVERTED: 1024}
# The classes with the most long posts; posts of each to learn from, and at most so many to be asked for.
CLASSES, PER_CLASS, ASKED = 6, 20, 20
EPOCHS, BATCH, RATE, WARM_UP = 3, 8, 1e-4, 0.1


def chosen(posts: Sequence[Document], classes: Sequence[str], most: int) -> list[Document]:
    """The first ``most`` long posts of each class, in the order they had."""
    taken: Counter[str] = Counter()
    kept = []
    for post in posts:
        if len(post.ids) + 2 >= LEAST and post.label in classes and taken[post.label] < most:
            taken[post.label] += 1
            kept.append(post)
    return kept


class Classifier(nn.Module):
    """A layer on the mean of an encoder's last hidden states.

    Args:
        encoder: as ``AutoModel`` loads it.
        classes: how many.
        tokenizer: whose special tokens frame a text.
        length: tokens that are read of a text, special ones included.
    """

    def __init__(self, encoder: PreTrainedModel, classes: int, tokenizer: PreTrainedTokenizerBase, length: int):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)
        self.tokenizer = tokenizer
        self.length = length

    def forward(self, texts: Sequence[Document]) -> Tensor:
        """Scores of the classes, ``[texts, classes]``."""
        before, after = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        rows = [[before, *text.ids[: self.length - 2], after] for text in texts]
        batch = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        mask = batch["attention_mask"]
        hidden = self.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        return self.head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def learn(model: Classifier, posts: Sequence[Document], labels: Sequence[str], seed: int) -> None:
    """All epochs; the rate rises over the first steps and falls to zero."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    steps = EPOCHS * -(-len(posts) // BATCH)
    warm_up = max(1, int(WARM_UP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
    )
    model.train()
    for _ in range(EPOCHS):
        order = draw.sample(posts, len(posts))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            loss = cross_entropy(model(batch), torch.tensor([labels.index(post.label) for post in batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.inference_mode()
def accuracy(model: Classifier, posts: Sequence[Document], labels: Sequence[str]) -> float:
    """The share of posts whose class has the highest score."""
    model.eval()
    named = [labels[model([post]).argmax().item()] for post in posts]
    return sum(name == post.label for name, post in zip(named, posts, strict=True)) / len(posts)


def compare(
    encoders: dict[str, Any],
    training: Sequence[Document],
    asked: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    seeds: int,
) -> list[dict[str, Any]]:
    """A row per model: mean accuracy over seeds, each seed's, and the seconds a run of fine-tuning took.

    Args:
        encoders: functions that load each model anew, by its name in ``LENGTHS``.
        training: what is learnt from.
        asked: what accuracy is measured on.
        tokenizer: of all models.
        seeds: runs per model.
    """
    labels = sorted({post.label for post in training})
    rows = []
    for name, load in encoders.items():
        found, seconds = [], []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = Classifier(load(), len(labels), tokenizer, LENGTHS[name])
            start = time.perf_counter()
            learn(model, training, labels, seed)
            seconds.append(time.perf_counter() - start)
            found.append(round(accuracy(model, asked, labels), 4))
        rows.append({"reader": name, "length": LENGTHS[name], "accuracy": round(statistics.mean(found), 4),
                     "accuracies": found, "seconds": round(statistics.mean(seconds), 1)})  # fmt: skip
    return rows


def measured(tokenizer: PreTrainedTokenizerBase, converted: str | None, seeds: int) -> Part:
    """The part of the results; without a converted copy, of the original alone."""
    posts = {name: corpora.newsgroups(tokenizer, name, LEAST - 2) for name in ("train", "test")}
    counts = Counter(post.label for post in posts["train"] if len(post.ids) + 2 >= LEAST)
    classes = [label for label, _ in counts.most_common(CLASSES)]
    training, asked = chosen(posts["train"], classes, PER_CLASS), chosen(posts["test"], classes, ASKED)
    encoders: dict[str, Any] = {ORIGINAL: lambda: AutoModel.from_pretrained(minilm())}
    if converted is not None:
        encoders[CONVERTED] = lambda: load_converted(converted)
    rows = compare(encoders, training, asked, tokenizer, seeds)
    return part(
        {"what": "classify"}, rows, classes=len(classes), training=len(training), documents=len(asked), seeds=seeds
    )
