"""The documentation site, made by Sphinx from the Markdown files of the repository: ``make docs``."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

from hf_relpos.version import __version__ as release

project = "hf_relpos"
copyright = "The hf_relpos maintainers"
version = release

# The root of the repository is the source, so that links between files hold on the site as they do in the repository.
root_doc = "docs/index"
include_patterns = ["README*.md", "CHANGELOG.md", "docs/*.md", "examples/README.md", "model_cards/*.md"]
exclude_patterns = ["model_cards/TEMPLATE.md"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # links to headings are checked; the anchors are those of GitHub
default_role = "literal"

# A name that is no link is a warning, and so an error, unless it is of another package or stands for any type.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|transformers|datasets|numpy|collections|os|pathlib)\..*"),
    ("py:class", r"Figure|Path|PreTrainedModel|PreTrainedTokenizerBase|Tensor|(.*\.)?(Model|Config)"),
]

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_type_aliases = {"RelPosLike": "RelPosLike", "Settings": "Settings"}
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
# The site's root leads to the first page.
html_additional_pages = {"index": "to_first_page.html"}
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]


def fields_of(_app: Any, what: str, _name: str, given: Any, *_: Any) -> tuple[str, None] | None:
    """The signature of a dataclass: its fields with their defaults, also where it has a ``__new__`` of its own."""
    if what != "class" or not is_dataclass(given):
        return None
    _self, *fields = inspect.signature(given.__init__).parameters.values()
    bare = [field.replace(annotation=inspect.Parameter.empty) for field in fields]
    return str(inspect.Signature(bare)), None


def setup(app: Any) -> None:
    """What Sphinx calls."""
    app.connect("autodoc-process-signature", fields_of)
