"""`hf-relpos recommend`: what rules say of a model, a task and texts, and the command that does it."""

from __future__ import annotations

import argparse
import json
import shlex

from transformers import AutoConfig, AutoTokenizer

from hf_relpos.advice import Recommendation, recommend
from hf_relpos.advice.rules import CONVERT
from hf_relpos.cli.data import embedded_model_folder, load_bbc_news
from hf_relpos.cli.loading import loading
from hf_relpos.cli.texts import texts_of
from hf_relpos.config import RelPosConfig
from hf_relpos.schemes.spelling import spell


def run_recommend(args: argparse.Namespace) -> None:
    """Run the command from the options of `hf_relpos.cli.recommend_options`.

    Raises:
        CommandError: If something is missing, or cannot be loaded or read.
        RelPosError: What :func:`hf_relpos.recommend` raises.
    """
    source = args.model or str(embedded_model_folder())
    given = texts_of(args)
    texts = [example.text for example in load_bbc_news().train] if given is None else given
    with loading("MODEL", source):
        config, tokenizer = AutoConfig.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    found = recommend(config, args.task, texts, tokenizer, samples=args.samples)
    if args.json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    print(found)
    if found.relpos is not None:
        print(f"\nto do it\n  {_command(found, found.relpos, args)}")


def _command(found: Recommendation, relpos: RelPosConfig, args: argparse.Namespace) -> str:
    """The command that does what is proposed."""
    words = ["hf-relpos", found.do, *([args.model] if args.model else [])]
    words += ["--output-dir", "relative", "--scheme", *map(spell, relpos.scheme_configs)]
    if found.do == CONVERT:
        return shlex.join([*words, "--texts", args.texts or "YOUR_TEXTS"])
    return shlex.join([*words, "--native", relpos.native])
