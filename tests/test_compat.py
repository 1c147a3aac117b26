"""docs/compat.md: what it says is relied on is there, and nothing else is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import reduce
from pathlib import Path

import pytest

import hf_relpos

PACKAGE = Path(hf_relpos.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "compat.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (`.+?`) \| .+ \| `([\w/]+\.py)` \| `(\w+)\.py::(\w+)` \|$", re.MULTILINE)
ROWS = [
    (module, name, file, test_module, test)
    for module, names, file, test_module, test in ROW.findall(PAGE)
    for name in re.findall(r"`([\w.]+)`", names)
]


def test_every_row_of_the_page_is_read():
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(ROW.findall(PAGE)) == len(lines) > 40


@pytest.mark.core
@pytest.mark.parametrize(("module", "name"), [row[:2] for row in ROWS])
def test_each_name_is_where_the_page_says(module, name):
    """As an attribute, or, where it is one of objects that are made, as a word of the module's source."""
    place = importlib.import_module(module)
    try:
        reduce(getattr, name.split("."), place)
    except AttributeError:
        assert re.search(rf"\b{name}\b", inspect.getsource(place)), f"{module} has no {name}"


# Lists and mappings that there are one of for each task or method are found by a pattern.
PATTERNS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "MODEL_",
    "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING": "TRANSFORMERS_MODELS_TO_",
}


@pytest.mark.parametrize(("name", "file", "test_module", "test"), [row[1:] for row in ROWS])
def test_each_name_is_used_and_tested_where_the_page_says(name, file, test_module, test):
    used = name.rpartition(".")[2]
    assert PATTERNS.get(used, used) in (PACKAGE / file).read_text(encoding="utf-8")
    assert callable(getattr(importlib.import_module(test_module), test))


def test_no_other_private_name_is_used():
    """Attributes that begin with an underscore, of whatever is not defined in the package."""
    used: dict[str, str] = {}
    own = {"_fields", "_replace"}  # of named tuples: public, for all their underscore
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    own.add(node.attr)
                if re.match(r"_[A-Za-z]", node.attr):
                    used[node.attr] = str(path.relative_to(PACKAGE))
    named = {part for module, name, *_ in ROWS for part in [*module.split("."), *name.split(".")]}
    assert {name: file for name, file in used.items() if name not in own | named} == {}
