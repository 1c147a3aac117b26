"""`hf-relpos inspect`: load, measure, and show it in the terminal or write it into a folder."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

from hf_relpos.cli.errors import extra_missing
from hf_relpos.cli.models import load_model, transformer_of
from hf_relpos.cli.output import check_new_folder, written_whole
from hf_relpos.cli.texts import texts_of
from hf_relpos.inspection import inspect_model


def run_inspect(args: argparse.Namespace) -> None:
    """Run the command from the options of `hf_relpos.cli.inspect_options`.

    Raises:
        CommandError: If something is missing, or cannot be loaded, read or written.
        RelPosError: What :func:`hf_relpos.inspect_model` raises. Nothing has been written then.
    """
    output = None if args.output_dir is None else Path(args.output_dir)
    if output is not None:
        check_new_folder("--output-dir", output)
        if importlib.util.find_spec("matplotlib") is None:
            raise extra_missing("matplotlib", "Drawing into --output-dir")
    texts = texts_of(args)
    whole, tokenizer = load_model(args.model, with_tokenizer=texts is not None)
    inspection = inspect_model(
        transformer_of(whole),
        texts,
        tokenizer or getattr(whole, "tokenizer", None),
        samples=args.samples,
        length=args.max_length,
    )
    if output is not None:
        with written_whole("--output-dir", output) as folder:
            inspection.save(folder)
    if args.json:
        print(json.dumps(inspection.to_dict()))
        return
    print(inspection)
    if texts is None:
        print("\nHow much attention goes by positions is measured on texts: give --texts.")
    if output is not None:
        print(f"\n{output / 'index.html'}  all of it with its plots, which are there as PNG and SVG as well")
