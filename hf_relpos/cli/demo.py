"""`hf-relpos demo`: one classifier, trained without and with relative positions, saved, loaded, compared."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

import hf_relpos
from hf_relpos.cards import write_model_card
from hf_relpos.cli import data as texts
from hf_relpos.cli import report
from hf_relpos.cli.errors import CheckFailed, CommandError, extra_missing
from hf_relpos.cli.reload_check import check_reload
from hf_relpos.cli.training import EncodedTexts, Run, Settings, added_parameters, fine_tune, predict_logits

UNPATCHED, PATCHED = "unpatched", "patched"
EMBEDDED_MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"
EMBEDDED_MODEL_LICENSE = "apache-2.0"
IDENTITY_TOLERANCE = 1e-4


def run_demo(args: argparse.Namespace) -> None:
    """Run the demo from the options of `hf_relpos.cli.demo_options`.

    Raises:
        CommandError: If something it needs is missing, or an option does not fit.
        CheckFailed: If a fresh patch changes the model, or if the reloaded model predicts anything else.
    """
    started = time.perf_counter()
    _check_files(args)
    plots = _plots()
    relpos = _relpos_config(args)
    output = Path(args.output_dir)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--output-dir {output} cannot be made: {error}. Give a folder that can.") from error
    source = args.model or str(texts.embedded_model_folder())
    news = _load_texts(args, output)
    settings = Settings(
        seed=args.seed,
        max_steps=args.max_steps,
        evaluations=2 if args.quick else 4,
        max_length=args.max_length,
    )
    tokenizer = _load_tokenizer(source, settings.max_length, bounded=relpos.native != "drop")
    train = EncodedTexts(news.train, tokenizer, settings.max_length)
    evaluation = EncodedTexts(news.eval, tokenizer, settings.max_length)
    eval_texts = [example.text for example in news.eval]
    print(
        f"model:  {EMBEDDED_MODEL_ID if args.model is None else args.model}\n"
        f"texts:  {news.name}: {len(train)} to train on, {len(evaluation)} to measure on, "
        f"{len(news.labels)} classes\n"
        f"steps:  {settings.max_steps} of {settings.batch_size} texts of up to {settings.max_length} tokens, "
        "for each model\n"
    )

    plain = _load_model(source, tokenizer, news.labels, args.seed)
    model = hf_relpos.patch_model(_load_model(source, tokenizer, news.labels, args.seed), relpos)
    print(f"{hf_relpos.patch_report(model)}\n")
    difference = _difference_at_start(plain, model, tokenizer, eval_texts[: settings.eval_batch_size], settings)
    if relpos.native != "drop" and difference > IDENTITY_TOLERANCE:
        raise CheckFailed(f"A fresh patch must not change the model, but a logit differs by {difference:.3g}.")
    print(f"freshly patched, no logit differs from the unpatched model's by more than {difference:.1e}\n")

    runs: dict[str, Run] = {}
    for name, candidate in ((UNPATCHED, plain), (PATCHED, model)):
        runs[name] = fine_tune(name, candidate, tokenizer, train, evaluation, settings, output / "trainer")
    added = {UNPATCHED: added_parameters(plain), PATCHED: added_parameters(model)}
    print(f"\n{report.comparison(runs, added)}\n")

    saved = output / "model"
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    _write_card(model, saved, args, news, runs, settings)
    print("loading the saved model in a fresh process ...", flush=True)
    batch_size = settings.eval_batch_size
    logits = predict_logits(model, tokenizer, eval_texts, settings.max_length, batch_size)
    check_reload(saved, logits, eval_texts, max_length=settings.max_length, batch_size=batch_size, device=model.device)
    print(f"the reloaded model's {len(logits)} predictions are equal, bit for bit\n")

    plots.plot_validation_loss(runs, output / "validation_loss.png")
    plots.plot_learned(model, output / "tables_and_gates.png")
    seconds = time.perf_counter() - started
    report.write_results(
        output / "results.json",
        {
            "model": EMBEDDED_MODEL_ID if args.model is None else Path(args.model).name,
            "data": {
                "name": news.name,
                "labels": news.labels,
                "train_samples": len(train),
                "eval_samples": len(evaluation),
            },
            "relpos": hf_relpos.patch_report(model).config.to_dict(),
            "settings": asdict(settings),
            "runs": {name: {**asdict(run), "added_parameters": added[name]} for name, run in runs.items()},
            "difference_at_start": difference,
            "reload": {"texts": len(logits), "equal": True},
            "seconds": seconds,
        },
    )
    print(
        f"{output / 'model'}                  the patched model, its tokenizer and its model card\n"
        f"{output / 'validation_loss.png'}    both validation-loss curves\n"
        f"{output / 'tables_and_gates.png'}   what the patch has learned about positions\n"
        f"{output / 'results.json'}           all numbers\n\n"
        f"done in {seconds:.0f} seconds"
    )


def _plots() -> ModuleType:
    """The module that draws. It is in the `demo` extra: asked for first, not after minutes of training."""
    try:
        from hf_relpos.cli import plots
    except ModuleNotFoundError as error:
        raise extra_missing(str(error.name), "The demo") from error
    return plots


def _relpos_config(args: argparse.Namespace) -> hf_relpos.RelPosConfig:
    scheme = {"type": args.scheme}
    if args.max_distance is not None:
        scheme["max_distance"] = args.max_distance
    elif args.scheme == "shaw":
        scheme["max_distance"] = 16
    return hf_relpos.RelPosConfig(schemes=[scheme], native=args.native, gate=args.gate)


def _check_files(args: argparse.Namespace) -> None:
    if (args.train_file is None) != (args.eval_file is None):
        given, missing = ("--train-file", "--eval-file") if args.train_file else ("--eval-file", "--train-file")
        raise CommandError(f"{given} was given without {missing}. Give both, or neither for the BBC news.")


def _load_texts(args: argparse.Namespace, output: Path) -> texts.TextData:
    if args.train_file is None:
        loaded = texts.load_bbc_news()
    else:
        loaded = texts.load_files(args.train_file, args.eval_file, output / "cache")
    return loaded.limited(args.train_samples, args.eval_samples)


def _load_tokenizer(source: str, max_length: int, bounded: bool) -> PreTrainedTokenizerBase:
    with _loading(source):
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=_is_local(source))
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise CommandError(f"The tokenizer of {source} has neither a padding nor an end token, so it cannot pad.")
        tokenizer.pad_token = tokenizer.eos_token
    if bounded and max_length > tokenizer.model_max_length:
        raise CommandError(
            f"--max-length is {max_length}, but {source} was trained with at most "
            f"{tokenizer.model_max_length} tokens. Give --max-length {tokenizer.model_max_length} or less, "
            "or --native drop."
        )
    return tokenizer


def _load_model(source: str, tokenizer: PreTrainedTokenizerBase, labels: list[str], seed: int) -> PreTrainedModel:
    """The classifier with a new head, the same one for the same seed."""
    set_seed(seed)
    with _loading(source):
        model = AutoModelForSequenceClassification.from_pretrained(
            source,
            local_files_only=_is_local(source),
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float32,
        )
    if hf_relpos.is_patched(model):
        raise CommandError(
            f"The model {source!r} has relative positions already, but the demo compares a model without them with its "
            "patched self. Give --model a model that is not patched."
        )
    return model


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Load from a folder or the Hub: a failure becomes an error; the report on the new head is dropped."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_only_errors)
    try:
        yield
    except (OSError, ValueError) as error:
        raise CommandError(
            f"The model {source!r} cannot be loaded. Give --model a folder with a model and its tokenizer, or the "
            f"id of a model on the Hub. The reason: {error}"
        ) from error
    finally:
        logger.removeFilter(_only_errors)


def _only_errors(record: logging.LogRecord) -> bool:
    """A filter, since a logger's level also decides what Transformers does."""
    return record.levelno >= logging.ERROR


def _is_local(source: str) -> bool:
    """Whether a model is a folder here, so that nothing needs to be asked of the Hub."""
    return Path(source).is_dir()


def _difference_at_start(
    plain: PreTrainedModel,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    some_texts: list[str],
    settings: Settings,
) -> float:
    """The largest difference between the logits of the two models before training."""
    first, second = (
        predict_logits(each, tokenizer, some_texts, settings.max_length, settings.eval_batch_size, show_progress=False)
        for each in (plain, model)
    )
    return float((first - second).abs().max())


def _write_card(
    model: PreTrainedModel,
    saved: Path,
    args: argparse.Namespace,
    news: texts.TextData,
    runs: dict[str, Run],
    settings: Settings,
) -> None:
    write_model_card(
        model,
        saved,
        title="relpos-demo",
        base_model=EMBEDDED_MODEL_ID if args.model is None else None,
        metrics=runs[PATCHED].final(),
        baseline=runs[UNPATCHED].final(),
        dataset=news.name,
        training={
            "steps": settings.max_steps,
            "texts per step": settings.batch_size,
            "tokens per text": f"up to {settings.max_length}",
            "peak learning rate": settings.learning_rate,
            "peak learning rate of the added parameters": settings.added_learning_rate,
            "texts to train on": len(news.train),
            "texts to measure on": len(news.eval),
            "seed": settings.seed,
        },
        license=EMBEDDED_MODEL_LICENSE if args.model is None else None,
        language="en" if args.model is None and args.train_file is None else None,
        overwrite=True,
    )
