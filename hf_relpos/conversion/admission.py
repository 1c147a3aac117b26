"""What can be converted into what: all checks, before anything changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from hf_relpos.compat import sentence_transformers as sentences
from hf_relpos.config import RelPosConfig, RelPosLike
from hf_relpos.conversion.errors import ConversionError
from hf_relpos.conversion.matching import Matching
from hf_relpos.families import Family
from hf_relpos.modeling import state
from hf_relpos.modeling.admission import patchable
from hf_relpos.training.numbers import is_number

# A vocabulary is padded to a round number at most, in the models there are.
_LEAST_COVERED = 0.9

STARTS = ("data-free", "texts", "zeros")


def choices_of(relpos: RelPosLike) -> RelPosConfig:
    """The choices to convert to: those of a scheme alone drop the native positions.

    Raises:
        RelPosConfigError: for a wrong choice.
        ConversionError: for choices that keep or gate the native positions.
    """
    config = RelPosConfig.of(relpos)
    if not isinstance(relpos, RelPosConfig):
        return RelPosConfig.of({**config.to_dict(), "native": "drop"})
    if config.native != "drop":
        raise ConversionError(
            f"convert was given native={config.native!r}, but teaches a model to do without the positions it was "
            'pretrained with. Give RelPosConfig(..., native="drop"), or a scheme alone. To keep or gate them, call '
            "patch_model and train."
        )
    return config


def transformer_of(model: Any) -> PreTrainedModel:
    """The Transformers model to convert: the one given, or the one inside a sentence model.

    Raises:
        ConversionError: if a sentence model starts with something else.
    """
    if not sentences.is_sentence_model(model):
        return model
    inner = sentences.inner_model(model)
    if inner is None:
        raise ConversionError(
            f"convert was given a sentence model that starts with a {type(model[0]).__name__}, in which there is no "
            "model of Transformers. Give one that has."
        )
    return inner


def check_model(model: Any, config: RelPosConfig) -> Family:
    """The family of a model that can be converted.

    Raises:
        UnsupportedModelError: if it is no model that can be patched.
        ConversionError: if it has just these relative positions already.
    """
    if not state.is_patched_model(model):
        return patchable(model, "convert", "Convert")
    own = state.check_config(model)
    if own.function == config.function:
        raise ConversionError(
            f"convert was given a {type(model).__name__} that has what it was to be converted to already: {own}. Give "
            "other relative positions, or train the model as it is."
        )
    return model.relpos_family


def check_tokenizer(tokenizer: Any, model: PreTrainedModel) -> None:
    """Refuse a tokenizer whose ids cannot be those of a model's vocabulary.

    Raises:
        ConversionError: names both sizes, or both padding ids.
    """
    if tokenizer is None or not callable(tokenizer):
        raise ConversionError(
            f"convert needs the model's tokenizer, but was given {tokenizer!r}. Give "
            "tokenizer=AutoTokenizer.from_pretrained(...) of the same checkpoint."
        )
    size, rows = len(tokenizer), model.get_input_embeddings().weight.shape[0]
    if not _LEAST_COVERED * rows <= size <= rows:
        raise _other_vocabulary(f"it has {size:,} tokens, and the {type(model).__name__} {rows:,}")
    ours, theirs = tokenizer.pad_token_id, getattr(model.config, "pad_token_id", None)
    if None not in (ours, theirs) and ours != theirs:
        raise _other_vocabulary(f"it pads with {ours}, and the {type(model).__name__} with {theirs}")


def _other_vocabulary(why: str) -> ConversionError:
    return ConversionError(
        f"convert was given a tokenizer of another vocabulary: {why}. Give the one of the model's checkpoint."
    )


def check_settings(
    *,
    lengths: object,
    steps: object,
    batch_tokens: object,
    learning_rates: object,
    start: object,
    target: Any,
    matching: object,
    training_arguments: object,
    special: int,
) -> None:
    """Refuse settings of :func:`hf_relpos.convert` that are none; ``special`` tokens are in every sequence.

    Raises:
        ConversionError: names the setting, its value and what is allowed.
    """
    least = special + 2
    _check(
        "lengths", lengths, bool(_several(lengths)) and all(_is_whole(n, least) for n in _several(lengths)),
        f"whole numbers of at least {least} ({special} special tokens and two of the text)",
    )  # fmt: skip
    _check("steps", steps, [_is_whole(n, 0) for n in _several(steps)] == [True] * 2, "two whole numbers of at least 0")
    _check("batch_tokens", batch_tokens, _is_whole(batch_tokens, 1), "a whole number of at least 1")
    rates = [is_number(rate) and 0 <= rate < math.inf for rate in _several(learning_rates)]
    _check("learning_rates", learning_rates, rates == [True] * 3, "three finite numbers of at least 0")
    _check("start", start, start in STARTS, f"one of {', '.join(map(repr, STARTS))}")
    _check("target", target, target is None or (is_number(target) and target <= 1), "a number of at most 1 (or None)")
    _check("matching", matching, matching is None or isinstance(matching, Matching), "None or a Matching(...)")
    _check(
        "training_arguments", training_arguments, isinstance(training_arguments or {}, Mapping),
        'None or a dictionary, for one {"bf16": True}',
    )  # fmt: skip


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConversionError(f"`{name}` is {value!r}, but must be {allowed}.")


def _several(value: object) -> Sequence[Any]:
    """The values of a list or the like; none of anything else."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
