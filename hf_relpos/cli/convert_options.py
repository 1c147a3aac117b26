"""The options of `hf-relpos convert`, apart from the command, so that `--help` need not import it."""

from __future__ import annotations

import argparse
from typing import Any

from hf_relpos.cli.choices import add_gate, add_schemes
from hf_relpos.cli.demo_options import positive, seed
from hf_relpos.cli.texts import add_texts

DESCRIPTION = """
Make a copy of a pretrained model with relative positions in place of its own. It learns on unlabelled text to say
what the model says, and to read texts longer than the model can. The folder has the copy, its tokenizer, its card,
and how much it is like the model, by length: fidelity.json, and as a picture where matplotlib is installed.
"""

EXAMPLES = """
examples:
  hf-relpos convert bert-base-uncased --scheme clipped:128 shaw:64,per_head=true --texts texts.txt --output-dir longer
  hf-relpos convert t5-small --scheme t5 --texts rows.jsonl --text-column body --lengths 512 2048 --output-dir longer
  hf-relpos convert bert-base-uncased --scheme t5:512 --texts texts.txt --output-dir longer --resume
  hf-relpos convert --scheme clipped:128 shaw:64,per_head=true --texts texts.txt --output-dir longer
                                                         (the MiniLM of the demo extra, without a network)
"""


def add_command(commands: Any) -> None:
    """Add `convert` to the commands of `hf-relpos`."""
    parser = commands.add_parser(
        "convert",
        help="teach a pretrained model to do with relative positions, and to read longer",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="Hub id or folder of a model, or of a sentence-transformers one (the MiniLM of the demo extra)",
    )  # fmt: skip
    add_texts(parser, "unlabelled texts", required=True)
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="a new folder for the result")
    parser.add_argument("--push-to-hub", metavar="ID", help="push the result to this repo, too")
    patch = parser.add_argument_group("relative positions")
    add_schemes(patch)
    add_gate(patch)
    training = parser.add_argument_group("training")
    training.add_argument(
        "--steps", nargs=2, type=int, metavar="N",
        help="how many for tables and gates alone, and how many for everything (300 2000)",
    )  # fmt: skip
    training.add_argument("--batch-tokens", type=positive, metavar="N", help="tokens per step, about (256)")
    training.add_argument(
        "--lengths", nargs="+", type=positive, metavar="N",
        help="of the sequences to learn from, in tokens (from an eighth of what MODEL reads, in a decoder from what it "
        "reads, to three times that)",
    )  # fmt: skip
    training.add_argument("--target", type=float, metavar="COSINE", help="stop at this likeness of the embeddings")
    training.add_argument("--seed", type=seed, default=0, metavar="N", help="of everything random (%(default)s)")
    training.add_argument("--bf16", action="store_true", help="train in bfloat16 where that is safe")
    training.add_argument(
        "--save-steps", type=positive, default=100, metavar="N",
        help="steps between two checkpoints, for --resume; they go when the result is there (%(default)s)",
    )  # fmt: skip
    training.add_argument("--resume", action="store_true", help="go on where the same command was interrupted")
    parser.set_defaults(run=_run, called={"model": "MODEL", "relpos": "what --scheme and --gate say"})


def _run(args: argparse.Namespace) -> None:
    from hf_relpos.cli.convert import run_convert

    run_convert(args)
