"""One page of all that was compared, its pictures inside: to open in a browser, or to send to somebody."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from hf_relpos.comparing.table import as_html, cells, in_a_sentence
from hf_relpos.config import RelPosConfig
from hf_relpos.inspection.page import document, section

if TYPE_CHECKING:
    from hf_relpos.comparing.record import Comparison

# The pictures in the order of the page: name -> heading, and how to read it.
SECTIONS = {
    "final": (
        "At the end of training",
        "A dot for each seed, a bar for their mean. Where the dots of two settings lie among each other, these runs do "
        "not tell the two apart.",
    ),
    "distances": (
        "By clip distance",
        "A dot for each seed, a line through the means; the dashed line is the unpatched model. Memory is what "
        "training steps add to a process that has loaded the model.",
    ),
    "curves": (
        "While training",
        "Mean over the seeds; the shade reaches from the lowest to the highest seed.",
    ),
}


def page(comparison: Comparison, pictures: Mapping[str, bytes]) -> str:
    """The page as HTML, which needs no other file and no network.

    Args:
        comparison: what was found.
        pictures: as SVG, by their names in ``SECTIONS``.
    """
    sections = "\n".join(section(*SECTIONS[name], pictures[name]) for name in SECTIONS if name in pictures)
    made_with = {**comparison.plan["versions"], **comparison.hardware}
    return document(
        f"Position settings compared on {comparison.plan['data']['name']}",
        f"""<p>{escape(in_a_sentence(comparison))}</p>
{as_html(cells(comparison))}
{sections}
<h2>The settings</h2>
{as_html(_settings(comparison), "words")}
<h2>Made with</h2>
{as_html([("what", "which"), *((name, str(value)) for name, value in made_with.items())], "words")}""",
    )


def _settings(comparison: Comparison) -> list[list[str]]:
    rows = [["setting", "schemes", "pretrained positions", "gate"]]
    for setting in comparison.plan["settings"]:
        relpos = setting["relpos"]
        if relpos is None:
            rows.append([setting["name"], "none", "keep", "none"])
        else:
            schemes = " + ".join(map(str, RelPosConfig.from_dict(relpos).scheme_configs))
            native = "drop, after a conversion" if setting["converted"] else relpos["native"]
            rows.append([setting["name"], schemes, native, relpos["gate"]])
    return rows
