"""English sentences with their German translations, from the message catalogues that Python packages ship.

The packages are read where they lie, and none is imported. They are in no extra, as they would bring in web servers,
databases and Qt, of which nothing is needed.
"""

from __future__ import annotations

import gettext
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.corpora import SPLIT_SEED, package_file

INSTALL = "pip install --no-deps -r examples/recipes/data.txt"
# Each package's folder.
PACKAGES = {
    "Django": "django",
    "jupyterlab-language-pack-de-DE": "jupyterlab_language_pack_de_DE",
    "pretix": "pretix",
    "spyder": "spyder",
    "wagtail": "wagtail",
    "Weblate": "weblate",
}
GERMAN = ("de", "de_DE")
CONTEXT = "\x04"  # gettext puts what tells two equal messages apart before this
NO_SENTENCE = re.compile(r"[<>{}%&$\n\t]|https?:")  # markup, and gaps that a program fills

Pairs = list[tuple[str, str]]


def sentence_pairs(fewest: int, most: int) -> Pairs:
    """Each English sentence once, with the first translation found, in a shuffled order.

    Args:
        fewest: words of a sentence.
        most: the same; a translation may have half as many again.

    Raises:
        FileNotFoundError: if a package is not installed; with the command.
    """
    found: dict[str, str] = {}
    for package, folder in PACKAGES.items():
        for english, german in messages(package_file(package, folder, INSTALL)):
            if _is_pair(english, german, fewest, most):
                found.setdefault(english, german)
    pairs = sorted(found.items())
    random.Random(SPLIT_SEED).shuffle(pairs)
    return pairs


def messages(folder: Path) -> Iterator[tuple[str, str]]:
    """All messages of the German catalogues (``LC_MESSAGES/*.mo``) in a folder, with their translations."""
    for path in sorted(folder.rglob("*.mo")):
        if path.parent.name == "LC_MESSAGES" and path.parent.parent.name in GERMAN:
            yield from _read(path)


def _read(path: Path) -> Iterable[tuple[str, str]]:
    with path.open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    # `gettext` has no other way to list what a catalogue holds. Of plurals each form is a message.
    for key, german in catalogue._catalog.items():
        english = key[0] if isinstance(key, tuple) else key
        yield english.split(CONTEXT)[-1].strip(), german.strip()


def _is_pair(english: str, german: str, fewest: int, most: int) -> bool:
    return (
        fewest <= len(english.split()) <= most
        and 1 <= len(german.split()) <= most * 3 // 2
        and english != german
        and not NO_SENTENCE.search(english + german)
    )
