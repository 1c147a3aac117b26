"""Nobody is told to install the package from where it is not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hf_relpos.installing import HOW_TO_INSTALL, WITHOUT_INSTALLING, install_command

ROOT = Path(__file__).parent.parent
FOLDERS = ("hf_relpos", "docs", "examples", "model_cards", "benchmarks")
TEXTS = [  # without the changelog, which tells what earlier releases said
    ROOT / "README.md",
    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")),
]
COMMAND = re.compile(r"pip install (?P<what>[^`&\n]*)")


def test_no_text_names_the_package_as_one_that_an_index_has():
    commands = [(path, found["what"]) for path in TEXTS for found in COMMAND.finditer(path.read_text(encoding="utf-8"))]
    assert len(commands) > 5
    assert [(path, what) for path, what in commands if re.search(r"hf[_-]relpos", what)] == []


def test_the_readme_says_what_the_package_says():
    assert HOW_TO_INSTALL in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_an_extra_is_installed_from_where_the_package_is():
    assert f"`{install_command()}`" in HOW_TO_INSTALL
    assert install_command("demo") == 'pip install ".[demo]"'


def test_every_extra_that_a_text_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for path in TEXTS
        for command in COMMAND.finditer(path.read_text(encoding="utf-8"))
        for group in re.findall(r"\.\[([\w,]+)\]", command["what"])
        for extra in group.split(",")
    }
    assert {"demo", "test", "bench", "export"} <= named <= set(extras)


def test_what_is_offered_to_those_who_cannot_install_it_is_there():
    import hf_relpos

    (name,) = re.findall(r"`hf_relpos\.(\w+)`", WITHOUT_INSTALLING)
    assert callable(getattr(hf_relpos, name))
