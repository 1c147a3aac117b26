"""English sentences with their German translations, from the message catalogues that Python packages ship.

The packages are read where they lie, and none is imported. They are in no extra, as they would bring in web servers,
databases and Qt, of which nothing is needed.
"""

from __future__ import annotations

import gettext
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.corpora import SPLIT_SEED, package_file

INSTALL = "pip install --no-deps -r examples/recipes/data.txt"
# Each package's folder.
PACKAGES = {
    "apache-superset": "superset",
    "Django": "django",
    "homeassistant": "homeassistant/components",
    "jupyterlab-language-pack-de-DE": "jupyterlab_language_pack_de_DE",
    "mayan-edms": "mayan",
    "OctoPrint": "octoprint",
    "plone.app.locales": "plone/app/locales",
    "pretix": "pretix",
    "spyder": "spyder",
    "wagtail": "wagtail",
    "Weblate": "weblate",
}
GERMAN = ("de", "de_DE")
CONTEXT = "\x04"  # gettext puts what tells two equal messages apart before this
NO_SENTENCE = re.compile(r"[<>{}%&$|\n\t]|https?:")  # markup, and gaps that a program fills
WORD = re.compile(r"\w+")

Pairs = list[tuple[str, str]]


def sentence_pairs(fewest: int, most: int) -> Pairs:
    """English sentences, each with the first translation found, in a shuffled order.

    Of those that differ only in marks and capital letters the first one stands.

    Args:
        fewest: words of a sentence.
        most: the same; a translation may have half as many again.

    Raises:
        FileNotFoundError: if a package is not installed; with the command.
    """
    found: dict[str, tuple[str, str]] = {}
    for package, folder in PACKAGES.items():
        for english, german in messages(package_file(package, folder, INSTALL)):
            if _is_pair(english, german, fewest, most):
                found.setdefault(" ".join(WORD.findall(english.lower())), (english, german))
    pairs = sorted(found.values())
    random.Random(SPLIT_SEED).shuffle(pairs)
    return pairs


def messages(folder: Path) -> Iterator[tuple[str, str]]:
    """All messages in a folder that are there in German: ``LC_MESSAGES/*.mo``, or ``de.json`` beside ``en.json``."""
    for path in sorted(folder.rglob("*.mo")):
        if path.parent.name == "LC_MESSAGES" and path.parent.parent.name in GERMAN:
            yield from _of_gettext(path)
    for path in sorted(folder.rglob("de.json")):
        if (english := path.with_name("en.json")).exists():
            yield from _of_both(*(json.loads(file.read_text(encoding="utf-8")) for file in (english, path)))


def _of_gettext(path: Path) -> Iterable[tuple[str, str]]:
    with path.open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    # `gettext` has no other way to list what a catalogue holds. Of plurals each form is a message.
    for key, german in catalogue._catalog.items():
        english = key[0] if isinstance(key, tuple) else key
        yield english.split(CONTEXT)[-1].strip(), german.strip()


def _of_both(english: Any, german: Any) -> Iterator[tuple[str, str]]:
    """The texts that stand in the same place of two trees of names."""
    if isinstance(english, dict) and isinstance(german, dict):
        for name in english:
            yield from _of_both(english[name], german.get(name))
    elif isinstance(english, str) and isinstance(german, str):
        yield english.strip(), german.strip()


def _is_pair(english: str, german: str, fewest: int, most: int) -> bool:
    return (
        fewest <= len(english.split()) <= most
        and 1 <= len(german.split()) <= most * 3 // 2
        and english != german
        and not NO_SENTENCE.search(english + german)
    )
