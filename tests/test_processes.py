"""No process that the package or a test starts takes modules from the folder it is started in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
STARTS = re.compile(r"\[\s*sys\.executable,\s*(?P<first>[^,\]]+)")


def test_code_that_python_is_given_as_text_or_as_a_module_is_run_without_that_folder():
    """A script's own folder is another matter: it is where the script lies, whoever starts it."""
    first = {
        f"{path.relative_to(ROOT)}: {found['first']}"
        for folder in ("hf_relpos", "examples", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for found in STARTS.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(first) > 5
    assert [one for one in first if one.endswith(('"-c"', '"-m"'))] == []
