"""Write `docs/long.md` from the kept results: ``python -m benchmarks.long_report``. Measures nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import conversion, conversion_memory, convert_small, reads_long
from benchmarks.common import RESULTS
from benchmarks.parts import Part
from benchmarks.report import Record, environments, table
from hf_relpos import RelPosConfig
from hf_relpos.schemes.spelling import spell

TARGET = Path(__file__).parent.parent / "docs" / "long.md"

HEAD = """# Converted models, measured

What `hf_relpos.convert` ([how to use it](convert.md)) makes of a model, and who else reads long texts. Made by
`python -m benchmarks.long_report` from the files in `benchmarks/results/`; every number comes from a command named
here. Sizes, seeds and rules stand in the commands' files, and were fixed before a converted model was measured; since
then documents were added, to all that there are, as one of 120 more or less decided. What should hold and does not is
listed under its table.
"""

COLUMNS = {
    "recall_1": "at 1",
    "recall_10": "at 10",
    "unseen_recall_1": "unseen, at 1",
    "unseen_recall_10": "unseen, at 10",
}
READERS = (
    "The original is MiniLM (all-MiniLM-L6-v2), pretrained with 512 positions. *Windows*: pieces of 512 tokens, each "
    "read alone, and the mean of their vectors. *Repeated* (Longformer's conversion), *grouped* and *interpolated* "
    "positions need no training either (LongEmbed, Zhu et al. 2024, arXiv 2404.12096). The converted copy reads "
    "everything at once."
)


def fidelity(record: Record) -> str:
    """How near the converted MiniLM is to the original."""
    text = [
        "## MiniLM, converted",
        "`python -m benchmarks.conversion --save FOLDER`: to ClippedBias(128) and Shaw(64, per_head=True), on 1,700 "
        "BBC articles. Cosine of the embeddings to the original's, of articles held out, cut at so many tokens: the "
        "mean, and the least.",
    ]
    for made in record["parts"]:
        if not conversion.is_other(made):
            cells = [[f"{row['length']:,}", f"{row['cosine']:.4f}", f"{row['least']:.4f}"] for row in made["results"]]
            text.append(table([["tokens", "mean", "least"], *cells]))
            text += [f"It took {made['minutes']} minutes.", *_missed(conversion.misses(made))]
    return "\n\n".join([*text, *_other_choices(record["parts"]), environments(record["parts"])])


def _other_choices(parts: list[Part]) -> list[str]:
    """What other schemes, fewer and more steps give, where that was measured."""
    if not any(map(conversion.is_other, parts)):
        return []
    lengths = [row["length"] for row in parts[0]["results"]]
    cells = [
        [
            " + ".join(f"`{spell(scheme)}`" for scheme in _config(made).scheme_configs),
            " + ".join(f"{steps:,}" for steps in made["fidelity"]["settings"]["steps"]),
            f"{conversion.tokens_read(made):,}",
            *(f"{row['cosine']:.4f}" for row in made["results"]),
        ]
        for made in sorted(parts, key=conversion.tokens_read)
    ]
    return [
        "Other schemes, fewer and more steps (`--schemes`, `--steps`): steps of both stages, the tokens learned from, "
        "by which the time goes, and the mean cosines.",
        table([["schemes", "steps", "tokens", *(f"at {length:,}" for length in lengths)], *cells]),
    ]


def _config(made: Part) -> RelPosConfig:
    relpos = made["fidelity"]["settings"]["relpos"]
    return RelPosConfig.from_dict({name: value for name, value in relpos.items() if value is not None})


def memory(record: Record) -> str:
    """The peak memory of a conversion beside that of fine-tuning."""
    text = [
        "## Memory",
        "`python -m benchmarks.conversion_memory`: what MiniLM takes at its peak in steps of 2,048 tokens, weights, "
        "gradients and moments included, and the teacher's weights.",
    ]
    for made in record["parts"]:
        cells = [[row["what"], f"{row['peak_mib']:,} MiB", f"{row['ratio']:.2f}"] for row in made["results"]]
        text += [table([["", "peak", "ratio"], *cells]), *_missed(conversion_memory.misses(made))]
    return "\n\n".join([*text, environments(record["parts"])])


def reading(record: Record) -> str:
    """What each reader found, named and learnt."""
    text = ["## Who reads to the end", f"`python -m benchmarks.reads_long --converted FOLDER`. {READERS}"]
    return "\n\n".join([*text, *map(task, record["parts"]), environments(record["parts"])])


def task(made: Part) -> str:
    """One task: what is asked, its table, and what does not hold."""
    rows = made["results"]
    names = [name for name in rows[0] if name != "reader" and isinstance(rows[0][name], (int, float))]
    cells = [[row["reader"], *(_cell(name, row[name]) for name in names)] for row in rows]
    said = ABOUT[made["of"]["what"]].format_map({**made, **made["of"]})
    return "\n\n".join([said, table([["", *map(_head, names)], *cells]), *_missed(reads_long.misses(made))])


ABOUT = {
    "find": "**Find the document from a sentence after its 620th token.** {source}, {documents} documents of 700 to "
    "4,096 tokens, {unseen} of them never seen in conversion; recall among all {documents}.",
    "passkey": "**Find the pass key** of a person in a text of filler (LongEmbed's test), {documents} documents of "
    "each length; the share of queries whose document is the nearest, by tokens.",
    "label": "**Label of the nearest training article.** BBC, {training} articles to learn from, {documents} unseen "
    "ones asked for; accuracy with whole articles cut at so many tokens.",
    "classify": "**Fine-tuned on long posts** of 20newsgroups (`--only classify`): {classes} classes, {training} posts "
    "of 700 tokens and more to learn from, {documents} others asked for; means of {seeds} seeds.",
}


def _head(name: str) -> str:
    return COLUMNS.get(name, f"{int(name):,}" if name.isdigit() else name)


def _missed(lines: list[str]) -> list[str]:
    return ["\n".join(["Not reached:", "", *(f"- {line}" for line in lines)])] if lines else []


def _cell(name: str, value: Any) -> str:
    return f"{value:,.0f}" if name in ("length", "seconds") else f"{value:.3f}"


def small(record: Record) -> str:
    """The small models of other families."""
    text = [
        "## A small GPT-2, a small T5",
        "`python -m benchmarks.convert_small`. Trained in the benchmark on BBC articles, converted on the same ones to "
        "ClippedBias(128) and Shaw(64, per_head=True), measured on others. *Positions dropped*: the copy before it has "
        "learned anything.",
    ]
    for made in record["parts"]:
        of, rows = made["of"]["what"], made["results"]
        names = [name for name in rows[-1] if name != "model"]
        tables, everything = convert_small.STEPS[of]
        said = f"{tables:,} + {everything:,} steps"
        title = f"GPT-2, {said}; perplexity at" if of == "gpt2" else f"T5, {said}"
        cells = [[row["model"], *(f"{row[name]:.3f}" if name in row else "" for name in names)] for row in rows]
        text += [table([[title, *map(_head, names)], *cells]), *_missed(convert_small.misses(made))]
    return "\n\n".join([*text, environments(record["parts"])])


SECTIONS = {"conversion": fidelity, "conversion_memory": memory, "reads_long": reading, "convert_small": small}


def page(folder: Path = RESULTS) -> str:
    """The whole page; a section for each file of results there is."""
    sections = []
    for name, section in SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            sections.append(section(json.loads(path.read_text(encoding="utf-8"))))
    return "\n".join([HEAD, *(text + "\n" for text in sections)])


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
