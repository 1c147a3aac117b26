"""`hf-relpos demo`: one classifier, trained without and with relative positions, saved, loaded, compared."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_relpos
from hf_relpos.cards import write_model_card
from hf_relpos.cli import data as texts
from hf_relpos.cli import report
from hf_relpos.cli.errors import CheckFailed, CommandError, extra_missing
from hf_relpos.cli.loading import loading
from hf_relpos.cli.models import EMBEDDED_MODEL_ID
from hf_relpos.cli.output import check_output, open_output
from hf_relpos.cli.reload_check import check_reload
from hf_relpos.comparing.classifier import load_classifier, load_tokenizer
from hf_relpos.comparing.examples import TextData
from hf_relpos.comparing.training import (
    Budget,
    EncodedTexts,
    NamedProgress,
    Run,
    added_parameters,
    fine_tune,
    predict_logits,
)
from hf_relpos.inspection.parameters import UNREACHED, collect_learned, unreached_in_words

UNPATCHED, PATCHED = "unpatched", "patched"
MODEL = "model"
CURVES, PICTURE, RESULTS = "validation_loss.png", "tables_and_gates.png", "results.json"
EMBEDDED_MODEL_LICENSE = "apache-2.0"
IDENTITY_TOLERANCE = 1e-4


def run_demo(args: argparse.Namespace) -> None:
    """Run the demo from the options of `hf_relpos.cli.demo_options`.

    Raises:
        CommandError: If something it needs is missing, or an option does not fit. Nothing has been written then.
        CheckFailed: If a fresh patch changes the model, or if the reloaded model predicts anything else.
    """
    _check_files(args)
    plots = _plots()
    relpos = _relpos_config(args)
    check_output("--output-dir", Path(args.output_dir))
    # What is only needed on the way goes when the demo ends, however it ends.
    with tempfile.TemporaryDirectory(prefix="hf_relpos_demo_") as scratch:
        output, finished = Path(args.output_dir), list[str]()
        try:
            _run(args, plots, relpos, output, Path(scratch), finished)
        except KeyboardInterrupt:
            kept = f"Finished, and in {output}: {', '.join(finished)}." if finished else "Nothing was finished."
            raise KeyboardInterrupt(kept) from None


def _run(
    args: argparse.Namespace,
    plots: ModuleType,
    relpos: hf_relpos.RelPosConfig,
    output: Path,
    scratch: Path,
    finished: list[str],
) -> None:
    started = time.perf_counter()
    source = args.model or str(texts.embedded_model_folder())
    news = _load_texts(args, scratch / "texts")
    budget = Budget(
        max_steps=args.max_steps,
        evaluations=2 if args.quick else 4,
        max_length=args.max_length,
    )
    with loading("--model", source):
        tokenizer = load_tokenizer(source, budget.max_length, bounded=relpos.native != "drop")
    train = EncodedTexts(news.train, tokenizer, budget.max_length)
    evaluation = EncodedTexts(news.eval, tokenizer, budget.max_length)
    eval_texts = [example.text for example in news.eval]
    print(
        f"model:  {EMBEDDED_MODEL_ID if args.model is None else args.model}\n"
        f"texts:  {news.name}: {len(train)} to train on, {len(evaluation)} to measure on, "
        f"{len(news.labels)} classes\n"
        f"steps:  {budget.max_steps} of {budget.batch_size} texts of up to {budget.max_length} tokens, "
        "for each model\n"
    )

    with loading("--model", source):
        plain, model = (load_classifier(source, tokenizer, news.labels, args.seed) for _ in range(2))
    if hf_relpos.is_patched(plain):
        raise CommandError(
            f"The model {source!r} has relative positions already, but the demo compares a model without them with its "
            "patched self. Give --model a model that is not patched."
        )
    hf_relpos.patch_model(model, relpos)
    print(f"{hf_relpos.patch_report(model)}\n")
    difference = _difference_at_start(plain, model, tokenizer, eval_texts[: budget.eval_batch_size], budget)
    if relpos.starts_exact and difference > IDENTITY_TOLERANCE:
        raise CheckFailed(f"A fresh patch must not change the model, but a logit differs by {difference:.3g}.")
    print(f"freshly patched, no logit differs from the unpatched model's by more than {difference:.1e}\n")

    open_output(output, (CURVES, PICTURE, RESULTS))
    runs: dict[str, Run] = {}
    for name, candidate in ((UNPATCHED, plain), (PATCHED, model)):
        runs[name] = fine_tune(
            candidate, tokenizer, train, evaluation, budget, args.seed, scratch / "trainer", [NamedProgress(name)]
        )
    added = {UNPATCHED: added_parameters(plain), PATCHED: added_parameters(model)}
    print(f"\n{report.comparison(runs, added)}\n")

    saved = output / MODEL
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    _write_card(model, saved, args, news, runs, budget)
    finished.append(MODEL)
    print("loading the saved model in a fresh process ...", flush=True)
    batch_size = budget.eval_batch_size
    logits = predict_logits(model, tokenizer, eval_texts, budget.max_length, batch_size)
    check_reload(saved, logits, eval_texts, max_length=budget.max_length, batch_size=batch_size, device=model.device)
    print(f"the reloaded model's {len(logits)} predictions are equal, bit for bit\n")

    learned = collect_learned(model)
    plots.plot_validation_loss(runs, output / CURVES)
    plots.plot_learned(learned, output / PICTURE)
    finished += [CURVES, PICTURE]
    if unreached := unreached_in_words(learned):
        print("\n  ".join(["parts of the tables that training has not reached:", *unreached]))
        print(f"each is {UNREACHED}\n")
    seconds = time.perf_counter() - started
    report.write_results(
        output / RESULTS,
        {
            "model": EMBEDDED_MODEL_ID if args.model is None else Path(args.model).name,
            "data": {
                "name": news.name,
                "labels": news.labels,
                "train_samples": len(train),
                "eval_samples": len(evaluation),
            },
            "relpos": hf_relpos.patch_report(model).config.to_dict(),
            "settings": {"seed": args.seed, **asdict(budget)},
            "runs": {name: {**asdict(run), "added_parameters": added[name]} for name, run in runs.items()},
            "difference_at_start": difference,
            "reload": {"texts": len(logits), "equal": True},
            "seconds": seconds,
        },
    )
    print(
        f"{output / MODEL}                  the patched model, its tokenizer and its model card\n"
        f"{output / CURVES}    both validation-loss curves\n"
        f"{output / PICTURE}   what the patch has learned about positions\n"
        f"{output / RESULTS}           all numbers\n\n"
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
    return hf_relpos.RelPosConfig(schemes=[scheme], native=args.native, gate=args.gate)


def _check_files(args: argparse.Namespace) -> None:
    if (args.train_file is None) != (args.eval_file is None):
        given, missing = ("--train-file", "--eval-file") if args.train_file else ("--eval-file", "--train-file")
        raise CommandError(f"{given} was given without {missing}. Give both, or neither for the BBC news.")


def _load_texts(args: argparse.Namespace, cache_dir: Path) -> TextData:
    if args.train_file is None:
        loaded = texts.load_bbc_news()
    else:
        loaded = texts.load_files(args.train_file, args.eval_file, cache_dir)
    return loaded.limited(args.train_samples, args.eval_samples)


def _difference_at_start(
    plain: PreTrainedModel,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    some_texts: list[str],
    budget: Budget,
) -> float:
    """The largest difference between the logits of the two models before training."""
    first, second = (
        predict_logits(each, tokenizer, some_texts, budget.max_length, budget.eval_batch_size, show_progress=False)
        for each in (plain, model)
    )
    return float((first - second).abs().max())


def _write_card(
    model: PreTrainedModel,
    saved: Path,
    args: argparse.Namespace,
    news: TextData,
    runs: dict[str, Run],
    budget: Budget,
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
            "steps": budget.max_steps,
            "texts per step": budget.batch_size,
            "tokens per text": f"up to {budget.max_length}",
            "peak learning rate": budget.learning_rate,
            "peak learning rate of the added parameters": budget.added_learning_rate,
            "texts to train on": len(news.train),
            "texts to measure on": len(news.eval),
            "seed": args.seed,
        },
        license=EMBEDDED_MODEL_LICENSE if args.model is None else None,
        language="en" if args.model is None and args.train_file is None else None,
        overwrite=True,
    )
