"""`hf-relpos demo --long`: MiniLM converted, then asked about texts that are longer than MiniLM reads."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoTokenizer

import hf_relpos
from hf_relpos.cli import data
from hf_relpos.cli.convert import save_converted
from hf_relpos.cli.errors import extra_missing
from hf_relpos.cli.long.readers import PRETRAINED, Reader, readers
from hf_relpos.cli.long.tasks import (
    Document,
    Row,
    documents_of,
    find,
    find_passkey,
    known_and_asked,
    long_ones,
    nearest_label,
)
from hf_relpos.cli.models import EMBEDDED_MODEL_ID
from hf_relpos.cli.output import check_output, open_output
from hf_relpos.cli.report import write_results
from hf_relpos.comparing.columns import format_table

CONVERTED, PICTURE, RESULTS = "converted", "reads_long.png", "reads_long.json"
SCHEMES = (hf_relpos.ClippedBias(128), hf_relpos.Shaw(64, per_head=True))


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        convert: settings of the conversion that are not its own.
        find: documents to be found.
        passkeys: documents with pass keys, of each length.
        passkey_lengths: their lengths, in tokens.
        labelled: articles whose labels are known, and as many to be named.
        cuts: lengths that these are cut at, in tokens.
    """

    convert: Mapping[str, Any]
    find: int
    passkeys: int
    passkey_lengths: tuple[int, ...]
    labelled: int
    cuts: tuple[int, ...]


FULL = Size(
    convert={},
    find=120,
    passkeys=10,
    passkey_lengths=(512, 1024, 2048, 4096),
    labelled=120,
    cuts=(256, 512, 1024, 2048),
)
QUICK = Size(
    convert={"steps": (2, 4), "lengths": (64, 128)},
    find=5,
    passkeys=3,
    passkey_lengths=(512, 768),
    labelled=8,
    cuts=(64, 128),
)

FIND, PASSKEY, LABEL = "find", "passkey", "label"
ASKED = {
    FIND: "Find the article from a sentence after its 620th token: the share whose article is the nearest, or among "
    "the ten nearest.",
    PASSKEY: "Find the text that holds a person's pass key, by the length of the texts: the share found.",
    LABEL: "The class of the nearest article whose class is known, by the tokens left of each: the share right.",
}
COLUMNS = {"recall_1": "nearest", "recall_10": "among ten"}


def run_long_demo(args: argparse.Namespace) -> None:
    """Run the demo from the options of `hf_relpos.cli.demo_options`.

    Raises:
        CommandError: If something it needs is missing. Nothing has been written then.
    """
    try:
        from hf_relpos.cli.long.drawing import plot_reading
    except ModuleNotFoundError as error:
        raise extra_missing(str(error.name), "The demo") from error
    output, size, started = Path(args.output_dir), QUICK if args.quick else FULL, time.perf_counter()
    check_output("--output-dir", output)
    folder, news = data.embedded_model_folder(), data.load_bbc_news()
    original, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    print(
        f"model:  {EMBEDDED_MODEL_ID}, which reads {PRETRAINED} tokens\n"
        f"texts:  {news.name}: {len(news.train)} to convert on, without their labels; {len(news.eval)} held out\n"
    )
    finished: list[str] = []
    try:
        converted: Any = hf_relpos.convert(
            original, SCHEMES, [example.text for example in news.train], tokenizer, seed=args.seed, **size.convert
        )
        print(f"\nhow near the copy is to the original:\n\n{converted.relpos_fidelity}\n")
        open_output(output, (PICTURE, RESULTS))
        save_converted(converted, tokenizer, output / CONVERTED, EMBEDDED_MODEL_ID)
        finished.append(CONVERTED)
        tokenizer.model_max_length = 10**9  # the readers cut themselves
        texts = [(example.text, news.labels[example.label]) for example in (*news.train, *news.eval)]
        documents = documents_of(tokenizer, texts, {example.text for example in news.train})
        found = ask(readers(tokenizer, original, converted), documents, tokenizer, size)
    except KeyboardInterrupt:
        kept = f"Finished, and in {output}: {', '.join(finished)}." if finished else "Nothing was finished."
        raise KeyboardInterrupt(kept) from None
    plot_reading(found, output / PICTURE)
    seconds = time.perf_counter() - started
    write_results(
        output / RESULTS,
        {"model": EMBEDDED_MODEL_ID, "data": news.name, "seed": args.seed, "size": asdict(size),
         "fidelity": converted.relpos_fidelity.to_dict(), "tasks": found, "seconds": seconds},
    )  # fmt: skip
    print(
        f"{output / CONVERTED}        the converted model, its tokenizer, its card and its fidelity\n"
        f"{output / PICTURE}   who reads long texts, as a picture\n"
        f"{output / RESULTS}  all numbers\n\n"
        f"done in {seconds:.0f} seconds"
    )


def ask(
    contestants: Mapping[str, Reader], documents: Sequence[Document], tokenizer: Any, size: Size
) -> dict[str, list[Row]]:
    """Ask every reader, and print each task's table when it is done.

    Args:
        contestants: readers by name.
        documents: articles, those that conversion may have seen first.
        tokenizer: of all readers.
        size: how much is asked.

    Returns:
        The rows of each task, a row for each reader.
    """
    known, asked = known_and_asked(documents, size.labelled, size.labelled)
    tasks = {
        FIND: lambda: find(contestants, long_ones(documents, size.find), tokenizer),
        PASSKEY: lambda: find_passkey(contestants, size.passkey_lengths, size.passkeys, tokenizer),
        LABEL: lambda: nearest_label(contestants, known, asked, size.cuts),
    }
    found = {}
    for name, task in tasks.items():
        found[name] = task()
        print(f"{ASKED[name]}\n\n{as_table(found[name])}\n", flush=True)
    return found


def as_table(rows: Sequence[Row]) -> str:
    """A task's rows in plain text; of recall, that of all documents."""
    names = [name for name in rows[0] if name != "reader" and not name.startswith("unseen")]
    heads = [COLUMNS.get(name, f"{name} tokens") for name in names]
    return format_table([["", *heads], *([row["reader"], *(f"{row[name]:.3f}" for name in names)] for row in rows)])
