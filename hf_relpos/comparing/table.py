"""What was compared as a table: in plain text, as HTML, and a row for each run as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hf_relpos.comparing.columns import format_table

if TYPE_CHECKING:
    from hf_relpos.comparing.record import Comparison, Spread

# A number -> its heading, and how it is written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", "{:.4f}".format),
    "f1_macro": ("macro-F1", "{:.4f}".format),
    "loss": ("validation loss", "{:.4f}".format),
    "steps_per_second": ("steps per second", "{:.2f}".format),
    "step_mib": ("peak memory of steps (MiB)", "{:,.0f}".format),
    "added_parameters": ("added parameters", "{:,.0f}".format),
}


def cells(comparison: Comparison) -> list[list[str]]:
    """The headings, and a row for each setting; only of what was measured."""
    summary = comparison.summary()
    shown = [key for key in COLUMNS if any(key in row for row in summary.values())]
    head = ["setting", *(COLUMNS[key][0] for key in shown)]
    return [head, *([name, *(_cell(key, row.get(key)) for key in shown)] for name, row in summary.items())]


def as_text(comparison: Comparison) -> str:
    """The table in plain text, with what was compared above it."""
    return f"{in_a_sentence(comparison)}\n\n{format_table(cells(comparison))}"


def as_html(rows: Sequence[Sequence[str]], kind: str = "numbers") -> str:
    """Cells as HTML; the first row and the first column are headings.

    Args:
        rows: the cells.
        kind: ``"numbers"``, which stand to the right, or ``"words"``, which stand to the left.
    """
    head, *others = rows
    lines = [f"<tr>{''.join(f'<th>{escape(one)}</th>' for one in head)}</tr>"]
    for name, *values in others:
        lines.append(f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(one)}</td>' for one in values)}</tr>")
    return f'<div class="wide"><table class="{kind}">\n' + "\n".join(lines) + "\n</table></div>"


def as_csv(comparison: Comparison) -> str:
    """A row for each run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["setting", "seed", *COLUMNS], lineterminator="\n")
    writer.writeheader()
    for result in comparison.results:
        writer.writerow({"setting": result.setting, "seed": result.seed, **result.numbers()})
    return text.getvalue()


def in_a_sentence(comparison: Comparison) -> str:
    """What was compared, and how."""
    plan, data, budget = comparison.plan, comparison.plan["data"], comparison.plan["budget"]
    seeds = ", ".join(map(str, plan["seeds"]))
    spread = "; ± is the standard deviation over the seeds" if len(plan["seeds"]) > 1 else ""
    return (
        f"{plan['model']} on {data['name']}: {data['train']:,} texts to learn from, {data['eval']:,} to measure on, "
        f"{len(data['labels'])} classes.\n{budget['max_steps']:,} steps of {budget['batch_size']} texts of up to "
        f"{budget['max_length']} tokens, seed{'s' if len(plan['seeds']) > 1 else ''} {seeds}{spread}."
    )


def _cell(key: str, value: Spread | None) -> str:
    if value is None:
        return "not measured"
    shown = COLUMNS[key][1]
    if not value.deviation:  # one seed, or the same for all
        return shown(value.mean)
    return f"{shown(value.mean)} ± {shown(value.deviation)}"
