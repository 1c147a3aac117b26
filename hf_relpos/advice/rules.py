"""The rules: when each holds, what it proposes, why, and where that is published.

Of the rules that hold, the first one to propose a setting decides on it. What no published work compares is said to be
so. Words may name what a situation has, in braces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_relpos.advice.situation import Situation
from hf_relpos.schemes import ClippedBias, SchemeConfig, Shaw, T5Bias

SHAW = "Shaw et al. 2018, Self-Attention with Relative Position Representations, https://arxiv.org/abs/1803.02155"
WANG = "Wang et al. 2021, On Position Embeddings in BERT, https://openreview.net/forum?id=onxoVA9FxMw"
HUANG = (
    "Huang et al. 2020, Improve Transformer Models with Better Relative Position Embeddings, "
    "https://arxiv.org/abs/2009.13658"
)
DEVLIN = "Devlin et al. 2019, BERT, appendix A.2, https://arxiv.org/abs/1810.04805"
RAFFEL = "Raffel et al. 2020, the T5 paper, section 2.1, https://arxiv.org/abs/1910.10683"
PRESS = "Press et al. 2022, Train Short, Test Long, https://arxiv.org/abs/2108.12409"
KAZEMNEJAD = (
    "Kazemnejad et al. 2023, The Impact of Positional Encoding on Length Generalization in Transformers, "
    "https://arxiv.org/abs/2305.19466"
)
SUN = "Sun et al. 2019, How to Fine-Tune BERT for Text Classification, https://arxiv.org/abs/1905.05583"
OURS = "this package: docs/convert.md"

# What is proposed to be done with a model.
NOTHING, PATCH, CONVERT = "nothing", "patch", "convert"

SHORT = 128  # tokens: what GLUE's texts are usually cut to
READS = ("classification", "embedding", "token-classification", "masked-lm")

# A setting: its value, or a function of the situation that gives it.
Setting = Any | Callable[[Situation], Any]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        when: whether it holds.
        because: why, in words.
        sources: where that is published; none where it follows from how the package works.
        proposes: settings: ``"do"``, ``"schemes"``, ``"native"``. A rule without any only has something to say.
    """

    when: Callable[[Situation], bool]
    because: str
    sources: tuple[str, ...] = ()
    proposes: Mapping[str, Setting] = field(default_factory=dict)


def is_short(situation: Situation) -> bool:
    """Whether nearly all texts are short."""
    return situation.lengths.most <= SHORT


def is_too_long(situation: Situation) -> bool:
    """Whether more than one text in twenty is longer than the model can read."""
    return situation.trained_length is not None and situation.lengths.most > situation.trained_length


def wide_buckets(situation: Situation) -> tuple[SchemeConfig, ...]:
    """T5's buckets, up to a quarter of the texts' length as in T5, in a power of two."""
    quarter = max(128, math.ceil(situation.lengths.most / 4))
    return (T5Bias(max_distance=1 << (quarter - 1).bit_length()),)


# What to do, and with what.
RULES = (
    Rule(
        lambda s: s.positions is not None and not s.absolute,
        "The model has relative positions already: {positions}. We know of nothing published on a second kind beside "
        "them.",
        (),
        {"do": NOTHING},
    ),
    Rule(
        lambda s: s.absolute and is_too_long(s),
        "More than 5 % of the texts are longer than the {trained_length} tokens that the model has positions for. "
        "Absolute positions say nothing of what lies beyond those they were trained on; relative ones go on.",
        (PRESS, OURS),
        {"do": CONVERT, "native": "drop", "schemes": (ClippedBias(128), Shaw(64, per_head=True))},
    ),
    Rule(
        lambda s: s.absolute and is_short(s) and s.task == "classification",
        "95 % of the texts have at most {short} tokens, and the task is classification: there, on GLUE, learned "
        "absolute positions did better than relative ones.",
        (WANG,),
        {"do": NOTHING},
    ),
    Rule(
        lambda s: s.absolute and is_short(s) and s.task in READS,
        "95 % of the texts have at most {short} tokens. For texts so short learned absolute positions were enough in "
        "classification; that is the nearest to {task} that is published.",
        (WANG,),
        {"do": NOTHING},
    ),
    Rule(
        lambda s: s.task == "question-answering",
        "Spans are where relative positions have been found to be better than absolute ones in BERT, on SQuAD.",
        (WANG, HUANG),
        {"do": PATCH},
    ),
    Rule(
        lambda s: s.task == "seq2seq",
        "In translation, relative positions in place of absolute ones gained 1.3 BLEU (English to German) and 0.3 "
        "(English to French) in big models that were trained from scratch.",
        (SHAW,),
        {"do": PATCH},
    ),
    Rule(
        lambda s: s.task == "generation",
        "What is written may come to be longer than what was trained on. Decoders with a bias over distance did better "
        "there than with absolute positions: with T5's, and more so with ALiBi, where training was from scratch.",
        (PRESS,),
        {"do": PATCH},
    ),
    Rule(
        lambda s: s.mostly_trained_at is not None and s.lengths.most > s.mostly_trained_at,
        "More than 5 % of the texts have over {mostly_trained_at} tokens. Nine tenths of the published pretraining of "
        "{family} had sequences of {mostly_trained_at}, so it learned the positions beyond in the last tenth alone.",
        (DEVLIN,),
        {"do": PATCH},
    ),
    Rule(
        lambda s: True,
        "We know of nothing published that compares both kinds of positions for such a model on such texts. A fresh "
        "patch computes what the model computed, so it can be tried beside the unpatched model without loss.",
        (),
        {"do": PATCH},
    ),
    Rule(
        lambda s: is_short(s) and s.task != "generation",
        "Clip distance 16: in translation of sentences all from 2 to 256 were alike. Key vectors alone, since value "
        "vectors beside them brought nothing.",
        (SHAW,),
        {"schemes": (Shaw(16, value=False),)},
    ),
    Rule(
        lambda s: True,
        "Buckets that widen with the distance tell far tokens apart, where a clip distance makes them all alike. T5 "
        "has 32 of them up to 128 tokens, for sequences of 512; for longer ones that proportion is kept, which no "
        "published work that we know of compares with others.",
        (RAFFEL,),
        {"schemes": wide_buckets},
    ),
    Rule(
        lambda s: s.positions is not None,
        "The pretrained positions stay, times a learned gate: so the patched model starts with what the pretrained one "
        "computes.",
        (),
        {"native": "gate"},
    ),
    Rule(
        lambda s: s.positions is None,
        "There are no pretrained positions to gate.",
        (),
        {"native": "keep"},
    ),
)

# Where published work finds no gain.
NO_GAIN = (
    Rule(
        lambda s: s.absolute,
        "Absolute positions beside relative ones: no further gain in translation, where both were trained from "
        "scratch. A pretrained model is another case, since it would be broken without its own.",
        (SHAW,),
    ),
    Rule(
        lambda s: s.absolute,
        "Value vectors beside key vectors: 25.8 BLEU with both and with key vectors alone. The authors leave open "
        "whether that holds in other tasks.",
        (SHAW,),
    ),
    Rule(
        lambda s: s.absolute and is_short(s),
        "A larger clip distance: no more than 0.1 BLEU between 2 and 256.",
        (SHAW,),
    ),
    Rule(
        lambda s: s.absolute and s.task in READS,
        "Relative positions in classification: on GLUE they were not better than learned absolute ones.",
        (WANG,),
    ),
    Rule(
        lambda s: s.absolute and is_too_long(s) and s.task == "classification",
        "Reading long texts to their end in classification: on reviews and news, the first 128 and the last 382 tokens "
        "alone did better than all of the text in pieces. Try to cut texts off first.",
        (SUN,),
    ),
    Rule(
        lambda s: s.absolute and s.task == "generation",
        "ALiBi and rotations in decoders that must generalise to longer inputs than those of training: on reasoning "
        "tasks they were no better than no positions at all. (The decoders were trained from scratch.)",
        (KAZEMNEJAD,),
    ),
)
