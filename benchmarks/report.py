"""Write `docs/performance.md` from the kept results: ``python -m benchmarks.report``. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import limits
from benchmarks.common import RESULTS

TARGET = Path(__file__).parent.parent / "docs" / "performance.md"

HEAD = """# Performance

Made by `python -m benchmarks.report` from the files in `benchmarks/results/`; every number comes from a command named
here. Ratios compare with the same work without relative positions, in the same run. Ratios beyond what the project
asks of itself are **bold**.
"""

# The contestants that have to keep the limits: what users get.
OURS = ("auto", "fused")

Record = dict[str, Any]
Row = dict[str, Any]


# Pieces of a page


def table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first row is its head, the first column stands to the left."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join(["---"] + ["---:"] * (len(rows[0]) - 1)) + "|")
    return "\n".join(lines)


def environment(record: Record) -> str:
    """On what something was measured, in a sentence."""
    hardware, versions = record["hardware"], dict(record["versions"])
    machine = [hardware["gpu"]] if "gpu" in hardware else [hardware["cpu"], f"{hardware['cores']} cores"]
    if "threads" in record and "gpu" not in hardware:
        machine.append(f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}")
    versions.pop("python")
    software = [f"{name} {version}" for name, version in versions.items() if version]
    return f"Measured on {record['date']}: {', '.join([*machine, *software])}."


def environments(parts: Iterable[Record]) -> str:
    """The same for several parts, each sentence once."""
    return " ".join(dict.fromkeys(environment(part) for part in parts))


def marked(ratio: float, most: float | None) -> str:
    """A ratio, bold where it is more than it should be."""
    text = f"{ratio:.2f}"
    return text if most is None or ratio <= most else f"**{text}**"


def by(parts: Iterable[Record], *fields: str) -> dict[tuple[Any, ...], list[Record]]:
    """Parts in groups of equal values of some fields of what they are of (None: no such field), as they appear."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for part in parts:
        groups.setdefault(tuple(part["of"].get(field) for field in fields), []).append(part)
    return groups


def by_length(
    title: str,
    parts: list[Record],
    name: str,
    cell: Callable[[Record, Row], str],
    most: limits.Limits | None = None,
) -> str:
    """A table with a column per length and a row per contestant.

    Args:
        title: stands in the corner.
        parts: one per length.
        name: the field that holds a row's name.
        cell: what stands there for a row of a part.
        most: the largest ratios asked for, for a row of their own.
    """
    parts = sorted(parts, key=lambda part: part["of"]["length"])
    names = dict.fromkeys(row[name] for part in parts for row in part["results"])
    found = {(row[name], part["of"]["length"]): cell(part, row) for part in parts for row in part["results"]}
    lengths = [part["of"]["length"] for part in parts]
    lines = [[each, *(found.get((each, length), "") for length in lengths)] for each in names]
    lines.append(
        ["asked for: at most", *(f"{most[length]:.2f}" if most and length in most else "" for length in lengths)]
    )
    return table([[title, *lengths], *(line for line in lines if any(line[1:]))])


def seconds(value: float) -> str:
    """Seconds with three digits, in ms where they are few."""
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1000:.3g} ms"


# Sections


def training_step(record: Record) -> str:
    """Seconds per step and ratios, by family, variant and length."""
    text = [
        "## Training step",
        "`python -m benchmarks.training_step` (`--padding`, `--dropout 0.1`). Forward and backward, 4 layers, "
        "vocabulary 8,000, float32, no dropout unless named. BERT and GPT-2: hidden size 768, 12 heads; T5: model size "
        "512, 8 heads, source and target of the length. Padded: lengths uniform in half to all of it. Medians of steps "
        "taken in turn. Each cell is the ratio to the unpatched model with `sdpa`; the first row has its seconds.",
    ]
    for (family, padding, dropout, engine), parts in by(
        record["parts"], "family", "padding", "dropout", "engine"
    ).items():
        title = [family, *["padded"] * padding, *[f"dropout {dropout}"] * (dropout > 0)]
        title += [] if engine == "auto" else [f"engine {engine}"]
        text.append(by_length(", ".join(title), parts, "model", _step_cell, limits.of_step(family, dropout)))
    return "\n\n".join([*text, environments(record["parts"])])


def _step_cell(part: Record, row: Row) -> str:
    if row["ratio"] == 1 and row["model"].startswith("unpatched"):
        return seconds(row["seconds"])
    of = part["of"]
    return marked(row["ratio"], limits.of_step(of["family"], of["dropout"]).get(of["length"]))


def attention(record: Record) -> str:
    """Attention alone: ratios of engines and peers, by scheme, direction, pass and length."""
    text = [
        "## Attention alone",
        "`python -m benchmarks.attention`. 12 heads of 64, 2,048 tokens or one sequence, float32. Medians of runs "
        "taken in turn; each cell is the ratio to `scaled_dot_product_attention` without positions, whose time is in "
        "the first row. Every contestant agreed with `eager` before it was timed. (memory): would not fit; (time): "
        "took longer than the limit.",
    ]
    fields = ("scheme", "direction", "pass", "load")
    for (scheme, direction, which, load), parts in by(record["parts"], *fields).items():
        title = [scheme, *["causal"] * (direction == "causal"), which]
        title += [f"beside {load} busy processes"] if load else []
        most = limits.of_attention(scheme, direction == "causal", load or 0)
        text.append(by_length(", ".join(title), parts, "contestant", _attention_cell, most))
    return "\n\n".join([*text, *_left_out(record["parts"]), environments(record["parts"])])


def _attention_cell(part: Record, row: Row) -> str:
    if "skipped" in row:
        return "" if row["why"] == "case" else f"({row['why']})"
    if row["contestant"].startswith("plain"):
        return seconds(row["seconds"])
    of = part["of"]
    most = limits.of_attention(of["scheme"], of["direction"] == "causal", of.get("load", 0)).get(of["length"])
    return marked(row["ratio"], most if row["contestant"] in OURS else None)


def _left_out(parts: list[Record]) -> list[str]:
    """Why some tables lack some contestants, in a sentence each."""
    rows = [row for part in parts for row in part["results"] if row.get("why") == "case"]
    reasons = dict.fromkeys(f"- {row['contestant']}: {row['skipped']}" for row in rows)
    return ["\n".join(["Not in every table:", "", *reasons])] if reasons else []


def decoding(record: Record) -> str:
    """Tokens per second."""
    text = [
        "## Decoding",
        "`python -m benchmarks.decoding`. GPT-2, 4 layers, 12 heads of 64, greedy, one sequence, dynamic cache, "
        f"float32; the models decode in turn. At least {limits.DECODING} of the unpatched speed is asked for.",
    ]
    for part in record["parts"]:
        lines: list[list[object]] = [[f"{part['of']['tokens']} tokens", "tokens per second", "of the unpatched"]]
        for row in part["results"]:
            ratio = f"{row['ratio']:.2f}" if row["ratio"] >= limits.DECODING else f"**{row['ratio']:.2f}**"
            lines.append([row["model"], f"{row['tokens_per_second']:.0f}", ratio])
        text.append(table(lines))
    return "\n\n".join([*text, environments(record["parts"])])


def step_memory(record: Record) -> str:
    """Memory that a training step adds."""
    text = [
        "## Memory of a training step",
        "`python -m benchmarks.step_memory`. The models of the training step, one sequence; peak during a step less "
        "what the process held before, so the weights do not count. Each number comes from a fresh process. Cells: "
        f"MiB, and the ratio to the unpatched model; at most {limits.STEP_MEMORY} is asked for, of T5 "
        f"{limits.T5_MEMORY:.2f} at {limits.T5_MEMORY_LENGTH} tokens.",
    ]
    for (family, layers), parts in by(record["parts"], "family", "layers").items():
        text.append(by_length(f"{family}, {layers} layers", parts, "model", _memory_cell))
    return "\n\n".join([*text, environments(record["parts"])])


def _memory_cell(part: Record, row: Row) -> str:
    is_long_t5 = part["of"]["family"] == "t5" and part["of"]["length"] >= limits.T5_MEMORY_LENGTH
    most = limits.T5_MEMORY if is_long_t5 else limits.STEP_MEMORY
    plain = row["model"].startswith("unpatched")
    return f"{row['added_mib']:.0f}" + ("" if plain else f" ({marked(row['ratio'], most)})")


def long(record: Record) -> str:
    """Steps at great length, and lengths under a budget."""
    text = ["## Long inputs", "`python -m benchmarks.long`."]
    for part in record["parts"]:
        rows = part["results"]
        if part["of"]["what"] == "train":
            text.append(
                f"A training step at {part['of']['length']:,} tokens, one sequence, one layer; each in a fresh process."
            )
            text.append(
                table(
                    [
                        ["", "window", "added MiB"],
                        *([f"{row['family']}, {row['model']}", row["window"] or "", row["added_mib"]] for row in rows),
                    ]
                )
            )
        elif part["of"]["what"] == "window":
            text.append(
                "Attention alone, forward and backward, Shaw(16), within a window and without one, at "
                f"{part['of']['length']:,} tokens; at most {limits.WINDOWED:.2f} of the time is asked for."
            )
            cells = [
                [
                    row["window"] or "none",
                    seconds(row["seconds"]),
                    marked(row["ratio"], limits.WINDOWED if row["window"] else 1),
                ]
                for row in rows
            ]
            text.append(table([["window", "time", "ratio"], *cells]))
        else:
            budget = part["of"]["budget_mib"]
            text.append(
                f"Attention alone, forward and backward, Shaw(16), under a budget of {budget:g} MiB: the longest "
                "sequence of the gather/scatter form, and the package there and beyond."
            )
            cells = [[row["form"], row["length"], row["peak_mib"], "yes" if row["fits"] else "**no**"] for row in rows]
            text.append(table([["", "tokens", "peak MiB", "fits"], *cells]))
    return "\n\n".join([*text, environments(record["parts"])])


def memory(record: Record) -> str:
    """Peak memory of attention alone, by engine and length."""
    parts = [
        "## Memory of attention",
        "`python -m benchmarks.memory`. Shaw(16), 12 heads of 64, one sequence, float32. Peak over the inputs in MiB. "
        f"{record['method']}",
    ]
    for direction in dict.fromkeys(row["pass"] for row in record["results"]):
        rows = [row for row in record["results"] if row["pass"] == direction]
        lengths = list(dict.fromkeys(row["length"] for row in rows))
        lines: list[list[object]] = [[direction, *lengths]]
        for engine in dict.fromkeys(row["engine"] for row in rows):
            peaks = {row["length"]: row["peak_mib"] for row in rows if row["engine"] == engine}
            lines.append([engine, *("" if peaks.get(n) is None else f"{peaks[n]:.0f}" for n in lengths)])
        parts.append(table(lines))
    return "\n\n".join([*parts, environment(record)])


def gpu_check(record: Record) -> str:
    """What the check on a machine with a GPU found."""
    text = ["## On a GPU", "`python -m benchmarks.gpu_check`: every engine against `eager`, then times as above."]
    for (what,), parts in by(record["parts"], "what").items():
        if what == "correctness":
            rows = [row for part in parts for row in part["results"]]
            wrong = [row for row in rows if not row["right"]]
            text.append(f"{len(rows)} cases, {len(wrong)} of them wrong" + (":" if wrong else "."))
            if wrong:
                cells = [[row["engine"], row["case"], row["dtype"], f"{row['times_tolerance']:.1e}"] for row in wrong]
                text.append(table([["engine", "case", "dtype", "error / tolerance"], *cells]))
        elif what == "attention":
            for (scheme, which, dtype), group in by(parts, "scheme", "pass", "dtype").items():
                text.append(by_length(f"{scheme}, {which}, {dtype}", group, "contestant", _attention_cell))
        else:
            for (family, dtype), group in by(parts, "family", "dtype").items():
                text.append(by_length(f"{family}, step, {dtype}", group, "model", _gpu_step_cell))
    return "\n\n".join([*text, environments(record["parts"])])


def _gpu_step_cell(part: Record, row: Row) -> str:
    return seconds(row["seconds"]) if row["model"].startswith("unpatched") else f"{row['ratio']:.2f}"


SECTIONS = {
    "training_step": training_step,
    "attention": attention,
    "step_memory": step_memory,
    "long": long,
    "decoding": decoding,
    "memory": memory,
    "gpu_check": gpu_check,
}

LIMITS = """
## Where it stands, and why

- **Causal attention forward alone, at 2,048 tokens and more.** Four fifths of the time are matrix products, the same
  ones that PyTorch's own operator takes from the same library, and it skips what is hidden as well: there is no tenth
  left to win. Tried and no faster: blocks of 96, 128 and 192 queries, of 256 and 1,024 keys; the numbers that a row
  gets left and right of the band in a register in place of a row. With the backward pass ours is as fast or faster.
- **Vectors at 128 tokens.** A table of 2k + 1 vectors on the query and one on the value are seven matrix products
  beside attention's seven, each (2k + 1) / 128 of one of those: with k = 32 half of the work again, by the same
  library. With k = 16 attention's own products take most of the time, those with tables come next, before the rows of
  scores. Kept: rows in whole vectors, one sum of a table's gradients for several heads, rows
  over offsets that start where products are fast, the odd vector by itself. Tried and not faster: tables appended to
  the keys, so that one product does both; adding up per offset after all rows.
- **A step of T5.** With `native="drop"` or Shaw's vectors its self-attention costs what attention without positions
  does; how far the whole step falls then depends on what the processor needs for the layers around it.
- **Attention dropout.** No fused operator of PyTorch for the CPU drops weights: the unpatched model runs unfused, and
  is the baseline. The kernel drops them in its own pass.
- **A step of generation** is one call of the kernel per layer, and what prepares it in Python. That weighs little
  where the weights take their time (large models, one thread), and more where those are read fast.
- **GPUs.** Nothing has run on one yet. The kernels for CUDA (`fused`, in Triton) are known from Triton's interpreter on
  the CPU and from compiling them for sm_80 and sm_90; before `auto` takes them it compares them with `eager`, and else
  runs `blockwise`. How fast they are nobody knows: `python -m benchmarks.gpu_check` checks and measures them.
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page; a section for each file of results there is."""
    sections = []
    for name, section in SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            sections.append(section(json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join([HEAD, *(text + "\n" for text in sections), LIMITS.strip() + "\n"])


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
