"""Draws the pictures of ``docs/concepts.md``, beside itself: ``python docs/pictures/draw.py``.

What they show of a scheme is computed by the scheme. The colours are those of Okabe and Ito, which people with any kind
of colour vision can tell apart (the green is darker, to be written with); each picture has a background of its own, so
that it can be read on a dark page too.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import torch

from hf_relpos import ClippedBias, Shaw, T5Bias
from hf_relpos.schemes import AttentionGeometry, SchemeConfig

HERE = Path(__file__).parent
INK, GREY, PALE, PAPER = "#1a1a1a", "#6b6b6b", "#ececec", "#ffffff"
BLUE, SKY, ORANGE, GREEN, PURPLE = "#0072b2", "#56b4e9", "#e69f00", "#007a59", "#cc79a7"


class Picture:
    """An SVG with an opaque background."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="15" role="img">',
            f"<title>{escape(title)}</title>",
        ]
        self.box(0.5, 0.5, width - 1, height - 1, PAPER, edge="#cccccc", corner=8)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, edge: str = "none", corner: float = 0
    ) -> None:
        """A rectangle, from its upper left corner."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{corner:g}" fill="{fill}" '
            f'stroke="{edge}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        fill: str = INK,
        size: float = 15,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Words, whose baseline is at ``y``."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size:g}"{weight}>'
            f"{escape(words)}</text>"
        )

    def line(self, path: str, end: tuple[float, float], head: str = "right") -> None:
        """A line along a path of SVG, with an arrow's head at its end."""
        shape = {"right": "l-8 -5v10z", "left": "l8 -5v10z", "down": "l-5 -8h10z"}[head]
        x, y = end
        self.parts.append(f'<path d="{path}L{x:g} {y:g}" stroke="{GREY}" stroke-width="2" fill="none"/>')
        self.parts.append(f'<path d="M{x:g} {y:g}{shape}" fill="{GREY}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A straight one: down, to the right or to the left."""
        self.line(f"M{x:g} {y:g}", (to_x, to_y), "down" if x == to_x else "right" if x < to_x else "left")

    def labelled(self, x: float, y: float, width: float, height: float, fill: str, *lines: str, ink: str = INK) -> None:
        """A box with lines of words in its middle."""
        self.box(x, y, width, height, fill, corner=5)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + 19 * (number - (len(lines) - 1) / 2), line, fill=ink)

    def __str__(self) -> str:
        """The file's text."""
        return "\n".join([*self.parts, "</svg>", ""])


def absolute_and_relative() -> Picture:
    """The same words at two places of a text: their positions change, their offsets do not."""
    picture = Picture(720, 300, "Absolute positions change when words move, offsets do not")
    for top, words, seen_from in (
        (20, ["the", "cat", "sat", "on", "the", "mat"], 2),
        (160, ["yesterday", "the", "cat", "sat", "on", "the", "mat"], 3),
    ):
        picture.text(16, top + 57, "position", fill=BLUE, anchor="start", bold=True)
        picture.text(16, top + 91, "offset", fill=GREEN, anchor="start", bold=True)
        for place, word in enumerate(words):
            x = 110 + 86 * place
            here = place == seen_from
            picture.box(x, top, 80, 32, PALE, corner=5, edge=INK if here else "none")
            picture.text(x + 40, top + 21, word, bold=here)
            picture.text(x + 40, top + 57, str(place), fill=BLUE)
            picture.text(x + 40, top + 91, f"{place - seen_from:+d}" if not here else "0", fill=GREEN)
        picture.text(110, top + 115, f"offsets as seen from “{words[seen_from]}”", fill=GREY, anchor="start", size=13)
    return picture


def offsets() -> Picture:
    """All pairs of eight tokens, each with its clipped offset, beside the table they read."""
    clip, length, cell = 2, 8, 36
    colours = {-2: BLUE, -1: SKY, 0: PALE, 1: "#f3cf80", 2: ORANGE}
    picture = Picture(720, 372, "Clipped offsets of all pairs, and the table with a row for each")
    left, top = 92, 56
    picture.text(left + length * cell / 2, 24, "key j", bold=True)
    picture.text(14, top + length * cell / 2 + 5, "query i", anchor="start", bold=True)
    for i in range(length):
        picture.text(left + cell * (i + 0.5), 46, str(i), fill=GREY, size=13)
        picture.text(left - 8, top + cell * (i + 0.5) + 5, str(i), fill=GREY, size=13, anchor="end")
        for j in range(length):
            d = max(-clip, min(clip, j - i))
            x, y = left + cell * j, top + cell * i
            picture.box(x, y, cell - 2, cell - 2, colours[d], corner=3)
            picture.text(
                x + cell / 2 - 1, y + cell / 2 + 4, f"{d:+d}" if d else "0", size=13, fill=PAPER if d == -2 else INK
            )
    picture.text(470, top + 26, "table, max_distance = 2", anchor="start", bold=True)
    names = {-2: "2 or more before", -1: "1 before", 0: "itself", 1: "1 after", 2: "2 or more after"}
    for row, d in enumerate(names):
        y = top + 48 + 40 * row
        picture.box(470, y, 64, 34, colours[d], corner=3)
        picture.text(502, y + 22, f"{d:+d}" if d else "0", fill=PAPER if d == -2 else INK)
        picture.text(546, y + 22, names[d], anchor="start")
    picture.text(470, top + 278, "5 rows, at any length", anchor="start", fill=GREY)
    return picture


def terms() -> Picture:
    """Where the four tables meet attention."""
    picture = Picture(720, 330, "The four terms of relative attention, and where they are added")
    picture.labelled(20, 30, 120, 44, PALE, "query q(i)")
    picture.labelled(20, 110, 120, 44, PALE, "key k(j)")
    picture.labelled(20, 246, 120, 44, PALE, "value v(j)")
    rows = (
        (20, SKY, "query table · q(i)", "Shaw's keys, RelativeKeyQuery", INK),
        (82, ORANGE, "key table · k(j)", "RelativeKeyQuery", INK),
        (144, GREEN, "bias per head", "T5Bias, ClippedBias, ALiBi", PAPER),
    )
    for y, colour, words, whose, ink in rows:
        picture.labelled(200, y, 240, 50, colour, words, whose, ink=ink)
        picture.arrow(440, y + 25, 500, y + 25)
    picture.arrow(140, 45, 200, 45)
    picture.arrow(140, 120, 200, 120)
    picture.labelled(500, 20, 200, 174, PALE, "scores", "q(i) · k(j)", "+ what the tables say", "of the offset j - i")
    picture.labelled(200, 243, 240, 50, PURPLE, "value table", "Shaw's values")
    picture.arrow(600, 194, 600, 226)
    picture.labelled(500, 226, 200, 84, PALE, "output", "weights × (v(j)", "+ value table)")
    picture.arrow(440, 268, 500, 268)
    picture.line("M140 262H170V226H470V252", (500, 252))
    return picture


def told_apart(config: SchemeConfig, reach: int) -> list[int]:
    """The distances to keys before the query at which a scheme's table begins to say something else than one nearer."""
    torch.manual_seed(0)
    scheme = config.build(AttentionGeometry(num_heads=1, head_dim=1, causal=False))
    terms = scheme.tables(reach, torch.zeros(1))
    table = (terms.bias if terms.query is None else terms.query.squeeze(-1))[0]
    before = table[: len(table) // 2 + 1].flip(0)
    return [0, *(distance for distance in range(1, len(before)) if before[distance] != before[distance - 1])]


def buckets() -> Picture:
    """How far, and how finely, three schemes tell distances apart."""
    reach, left, width = 192, 24, 672
    picture = Picture(720, 316, "Which distances schemes tell apart")
    schemes = (
        (Shaw(16, init="trunc_normal"), SKY, "Shaw(16): each distance up to 16"),
        (ClippedBias(128, init="trunc_normal"), ORANGE, "ClippedBias(128): each distance up to 128"),
        (T5Bias(init="trunc_normal"), PURPLE, "T5Bias(): near ones each, far ones in buckets that widen"),
    )
    for row, (config, colour, words) in enumerate(schemes):
        y = 20 + 88 * row
        picture.text(left, y + 12, words, anchor="start")
        starts = told_apart(config, reach)
        for start, end in zip(starts, [*starts[1:], reach], strict=True):
            gap = 0.6 if end - start == 1 else 1.5
            last = end == reach
            x, wide = left + width * start / reach, width * (end - start) / reach
            picture.box(x, y + 22, wide - gap, 32, PALE if last else colour)
            if last:
                picture.text(x + wide / 2, y + 43, f"from {start} on all alike", fill=GREY, size=13)
    for distance in range(0, reach + 1, 32):
        x = left + width * distance / reach
        picture.text(min(max(x, left + 4), left + width - 8), 290, str(distance), fill=GREY, size=13)
    picture.text(left + width / 2, 308, "distance to the key, in tokens", fill=GREY, size=13)
    return picture


def gates() -> Picture:
    """What a fresh patch is made of: gates at one, tables at zero."""
    picture = Picture(720, 262, "A fresh patch: gates are 1, tables are 0, so nothing has changed yet")
    picture.labelled(20, 30, 170, 50, PALE, "word embedding")
    picture.labelled(20, 120, 170, 50, SKY, "position embedding,", "as pretrained")
    picture.labelled(225, 120, 120, 50, BLUE, "× native gate", "starts at 1", ink=PAPER)
    picture.arrow(190, 145, 225, 145)
    picture.labelled(375, 30, 90, 140, PALE, "layers", "attention")
    picture.arrow(190, 55, 375, 55)
    picture.arrow(345, 145, 375, 145)
    picture.labelled(530, 30, 170, 50, ORANGE, "relative tables", "start at 0")
    picture.arrow(615, 80, 615, 120)
    picture.labelled(530, 120, 170, 50, BLUE, "× gate per head", "starts at 1", ink=PAPER)
    picture.arrow(530, 145, 465, 145)
    picture.text(360, 212, "Fresh: 1 × the pretrained positions + 1 × nothing = the pretrained model.", bold=True)
    picture.text(360, 238, "Training moves tables and gates; native='drop' takes the left branch away.", fill=GREY)
    return picture


PICTURES = {
    "absolute-relative": absolute_and_relative,
    "offsets": offsets,
    "terms": terms,
    "buckets": buckets,
    "gates": gates,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(str(draw()), encoding="utf-8")
