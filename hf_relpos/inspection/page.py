"""One page of all that was found in a model, its pictures inside: to open in a browser, or to send to somebody."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from hf_relpos.version import __version__

if TYPE_CHECKING:
    from hf_relpos.inspection.record import Inspection

# The pictures in the order of the page: name -> heading, and how to read it.
SECTIONS = {
    "use": (
        "How much each head goes by positions",
        "How much of a head's attention goes elsewhere when positions are taken away while the model reads: 0 if it "
        "does not need them, 1 if it then looks at other tokens altogether. Where there are pretrained positions as "
        "well, the last panel shows which of the two do more: red is relative, blue is pretrained.",
    ),
    "attention": (
        "Where attention goes, by distance",
        "How much of a token's attention goes to each offset from it, to the left and to the right, as the model is "
        "and without its positions. Where the lines lie on each other, positions change nothing. The scale is "
        "logarithmic above 1 %.",
    ),
    "scores": (
        "What relative positions add to scores, by distance",
        "The score of a token at each offset, with relative positions less without them, mean over the texts: 1 more "
        "makes a token 2.7 times as likely to be looked at. A line that is flat tells no distances apart.",
    ),
    "gates": (
        "Gates",
        "Each gate started at 1. Above 1 (red) a head has learned to use the relative terms more, below 1 (blue) less.",
    ),
    "bias": (
        "Bias against distance",
        "The same for the tables of biases alone, as they stand in the model.",
    ),
    "tables": ("What stands in the tables", "How much has been learned for each offset, in each layer."),
    "similarity_query": (
        "Similarity of offsets: relative keys",
        "Cosine of the vectors of two offsets. A red block is a range of offsets that the layer hardly tells apart.",
    ),
    "similarity_key": ("Similarity of offsets: relative queries", "The same of the vectors that meet the keys."),
    "similarity_value": ("Similarity of offsets: relative values", "The same of the vectors that are mixed in."),
}

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f23; background: #fff; margin: 0 auto; max-width: 62rem;
       padding: 1rem; }
h1 { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; overflow-x: auto; }
@media (max-width: 46em) { img { max-width: none; width: 45rem; } }
pre { overflow-x: auto; background: #f4f5f6; padding: 0.75rem; font-size: 13px; line-height: 1.35; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #d5d9dc; text-align: right; white-space: nowrap; }
tr:first-child th, th:first-child { white-space: normal; }
th:first-child { overflow-wrap: anywhere; min-width: 6rem; }
th:first-child, .words td, .words th { text-align: left; }
.words td { white-space: normal; min-width: 4rem; }
footer { color: #57606a; font-size: 14px; margin-top: 2rem; }
"""


def page(inspection: Inspection, pictures: Mapping[str, bytes]) -> str:
    """The page as HTML, which needs no other file and no network.

    Args:
        inspection: what was found.
        pictures: as SVG, by their names in ``SECTIONS``.
    """
    sections = "\n".join(section(*SECTIONS[name], pictures[name]) for name in SECTIONS if name in pictures)
    return document(
        f"Relative positions of {inspection.report.model}",
        f"""<pre>{escape(str(inspection.report))}</pre>
{sections}
<h2>All of it in numbers</h2>
<pre>{escape(str(inspection))}</pre>""",
    )


def document(title: str, content: str) -> str:
    """A page of its own.

    Args:
        title: in plain text.
        content: what stands below it, as HTML.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{content}
<footer>Made by hf_relpos {escape(__version__)}.</footer>
</body>
</html>
"""


def section(heading: str, how_to_read: str, picture: bytes) -> str:
    """A picture (SVG) with its heading, and how to read it."""
    source = b64encode(picture).decode("ascii")
    return (
        f"<section>\n<h2>{escape(heading)}</h2>\n<p>{escape(how_to_read)}</p>\n"
        f'<figure><img src="data:image/svg+xml;base64,{source}" alt="{escape(heading)}"></figure>\n</section>'
    )
