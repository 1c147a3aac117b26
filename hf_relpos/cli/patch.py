"""`hf-relpos patch`: load, patch, save or push; all of it or nothing."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import hf_relpos
from hf_relpos.cards.card import head_of
from hf_relpos.cards.saving import card_for_push
from hf_relpos.cli.choices import schemes_of
from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.hub import check_repo_id, push
from hf_relpos.cli.models import load_model, transformer_of
from hf_relpos.cli.output import check_new_folder, written_whole
from hf_relpos.compat import sentence_transformers as sentences
from hf_relpos.installing import HOW_TO_INSTALL


def run_patch(args: argparse.Namespace) -> None:
    """Run the command from the options of `hf_relpos.cli.patch_options`.

    Raises:
        CommandError: If something cannot be loaded, written or pushed.
        RelPosError: What :func:`hf_relpos.patch_model` raises. Nothing has been written then.
    """
    output = None if args.output_dir is None else Path(args.output_dir)
    if output is None and args.push_to_hub is None:
        raise CommandError("Say where the patched model is to go: give --output-dir DIR, or --push-to-hub ID, or both.")
    if output is not None:
        check_new_folder("--output-dir", output)
    if args.push_to_hub is not None:
        check_repo_id(args.push_to_hub)
    relpos = hf_relpos.RelPosConfig(
        schemes=schemes_of(args),
        native=args.native,
        gate=args.gate,
        window=args.window,
        layers=args.layers,
        share_layers=args.share_layers,
    )
    whole, tokenizer = load_model(args.model)
    model = transformer_of(whole)
    hf_relpos.patch_model(model, relpos)
    print(f"{hf_relpos.patch_report(model)}\n")

    if output is not None:
        with written_whole("--output-dir", output) as folder:
            _save(whole, tokenizer, folder)
        print(f"{output}  the patched model, its tokenizer and its card")
        print(_how_to_load(whole, str(output)))
    if args.push_to_hub is not None:
        with tempfile.TemporaryDirectory(prefix="hf_relpos_patch_") as scratch:
            repo = push(args.push_to_hub, lambda repo: _folder_to_push(whole, tokenizer, Path(scratch), repo), output)
        print(_how_to_load(whole, repo))


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model with its card, and its tokenizer; a sentence model saves its own, which are told of the patch."""
    model.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        return
    card = folder / "README.md"
    section = (
        f"\n\n## Relative positions\n\nImport `hf_relpos` before this model is loaded. {HOW_TO_INSTALL}\n\n"
        f"```\n{hf_relpos.patch_report(transformer_of(model))}\n```\n"
    )
    card.write_text(card.read_text(encoding="utf-8") + section, encoding="utf-8")


def _folder_to_push(model: Any, tokenizer: Any, folder: Path, repo: str) -> Path:
    _save(model, tokenizer, folder)
    if tokenizer is not None:
        (folder / "README.md").write_text(card_for_push(model, None, repo), encoding="utf-8")
    return folder


def _how_to_load(model: Any, place: str) -> str:
    if sentences.is_sentence_model(model):
        return f'load it with: import hf_relpos; SentenceTransformer("{place}")'
    return f'load it with: import hf_relpos; {head_of(model)[0]}.from_pretrained("{place}")'
