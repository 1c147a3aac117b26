"""The model that a user names: in the class it was saved from, with its tokenizer."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file

import hf_relpos
from hf_relpos.cli.data import embedded_model_folder
from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.loading import loading
from hf_relpos.compat import sentence_transformers as sentences
from hf_relpos.names import CLASS_PREFIX

LEAST_COVERED = 0.5  # of a model's vocabulary, which may be padded, and have places left for new tokens

EMBEDDED_MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"


def load_model(source: str | None, with_tokenizer: bool = True) -> tuple[Any, Any]:
    """A model and its tokenizer; or a sentence model, which has one itself, and None.

    Args:
        source: A folder, or an id on the Hub; None for the MiniLM of the `demo` extra, without its pooling.
        with_tokenizer: Whether the tokenizer is needed; if not, None comes in its place.

    Raises:
        CommandError: If it cannot be loaded.
    """
    if source is None:
        folder = embedded_model_folder()
        model = AutoModel.from_pretrained(folder)
        model.config.name_or_path = EMBEDDED_MODEL_ID  # what a card names, in place of a folder of this machine
        return model, AutoTokenizer.from_pretrained(folder)
    with loading("MODEL", source):
        if _is_sentence_model(source):
            return _load_sentence_model(source), None
        model = _class_of(AutoConfig.from_pretrained(source)).from_pretrained(source)
        if not with_tokenizer:
            return model, None
        tokenizer = AutoTokenizer.from_pretrained(source)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) < LEAST_COVERED * rows:  # what Transformers makes up where there are no files of one
        raise CommandError(
            f"MODEL {source} has no tokenizer that fits it: one of {len(tokenizer):,} tokens was found, and the model "
            f"has {rows:,}. Save its tokenizer into the folder."
        )
    return model, tokenizer


def transformer_of(model: Any) -> PreTrainedModel:
    """The model of Transformers that was loaded: the one given, or the one inside a sentence model.

    Raises:
        CommandError: If a sentence model starts with something else.
    """
    inner = sentences.inner_model(model) if sentences.is_sentence_model(model) else model
    if inner is None:
        raise CommandError(
            f"MODEL is a sentence model that starts with a {type(model[0]).__name__}, in which there is no model of "
            "Transformers. Give one that has."
        )
    return inner


def _is_sentence_model(source: str) -> bool:
    try:
        return cached_file(source, "modules.json") is not None
    except OSError:
        return False


def _load_sentence_model(source: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise CommandError(
            f"MODEL {source} is one of sentence-transformers, which is not installed. Install it: pip install "
            "sentence-transformers."
        ) from error
    return SentenceTransformer(source)


def _class_of(config: Any) -> Any:
    """The class a model was saved from, stock or patched; without a head where its config names none."""
    name = next(iter(config.architectures or ()), "")
    return getattr(transformers, name, None) or (
        getattr(hf_relpos, name) if name.startswith(CLASS_PREFIX) else AutoModel
    )
