"""What the examples share besides arguments: data splits, checkpoints, reports, model cards."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import transformers
from arguments import DataArguments, ModelArguments
from datasets import Dataset, load_dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import PredictionOutput, get_last_checkpoint

from hf_relpos import is_patched
from hf_relpos.cli.errors import CommandError, exit_status
from hf_relpos.cli.files import read_file
from hf_relpos.cli.loading import loading


def set_up(args: TrainingArguments) -> None:
    """Log from every process as `--log_level` and `--log_level_replica` say, and seed what is random."""
    level = args.get_process_log_level()
    for library in (datasets, transformers):
        library.utils.logging.set_verbosity(level)
    transformers.utils.logging.enable_explicit_format()
    set_seed(args.seed)


def load_splits(data: DataArguments, model_args: ModelArguments, args: TrainingArguments) -> dict[str, Dataset]:
    """Return the splits the run needs, under "train", "validation" and "test".

    Raises:
        CommandError: there is nothing to do, or data for something to do is missing or cannot be read.
    """
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    if not any(wanted.values()):
        raise CommandError("Nothing to do: give one or several of --do_train, --do_eval, --do_predict.")
    with args.main_process_first(desc="load the data"):
        if data.dataset_name is not None:
            with loading("--dataset_name", data.dataset_name, "a data set"):
                raw = load_dataset(
                    data.dataset_name,
                    data.dataset_config_name,
                    cache_dir=model_args.cache_dir,
                    token=model_args.token,
                )
            splits = {split: raw[name] for split, name in data.split_names.items() if name in raw}
        else:
            raw = {}
            for split, path in data.files.items():
                options = {"keep_linebreaks": True} if path.endswith(".txt") else {}
                raw[split] = read_file(f"--{split}_file", path, data.file_types, model_args.cache_dir, **options)
            splits = dict(raw)
        if data.validation_split_percentage is not None and "train" in splits:
            splits.update(cut(splits["train"], data, args.seed))

    limits = {
        "train": data.max_train_samples,
        "validation": data.max_eval_samples,
        "test": data.max_predict_samples,
    }
    actions = {"train": "--do_train", "validation": "--do_eval", "test": "--do_predict"}
    for split, is_wanted in wanted.items():
        if not is_wanted:
            splits.pop(split, None)
        elif split not in splits:
            way_out = f"give --{split}_file" if data.dataset_name is None else f"name one with --{split}_split_name"
            if split == "validation":
                way_out += ", or take a part of the training data with --validation_split_percentage 5"
            raise CommandError(f"{actions[split]} needs {split} data; there is: {', '.join(raw)}. Please {way_out}.")
        elif limits[split] is not None:
            splits[split] = splits[split].select(range(min(limits[split], len(splits[split]))))
    return splits


def cut(rows: Dataset, data: DataArguments, seed: int) -> dict[str, Dataset]:
    """Training data in two parts, as `--validation_split_percentage` says."""
    percentage = data.validation_split_percentage
    try:
        parts = rows.train_test_split(test_size=percentage / 100, seed=seed)
    except ValueError as error:  # one of the parts would be empty
        raise CommandError(
            f"--validation_split_percentage {percentage} cannot be taken from the {len(rows)} rows of "
            f"{data.given('train')}: rows must be left on both sides."
        ) from error
    return {"train": parts["train"], "validation": parts["test"]}


def text_column(option: str, name: str | None, default: str, dataset: Dataset, given: str) -> str:
    """Return the column of texts to read: `name`, else `default`, else the only one there is.

    Raises:
        CommandError: there is no such column, or not every row of it holds text.
    """
    columns = dataset.column_names
    column = name or (columns[0] if len(columns) == 1 else default)
    if column not in columns:
        raise CommandError(f"{given} has no column {column!r}: choose from {columns} with --{option}.")
    wrong = [(row, value) for row, value in enumerate(dataset[column]) if not isinstance(value, str)]
    if wrong:
        raise CommandError(
            f"{given}: column {column!r} must hold text, but row {wrong[0][0]} has {wrong[0][1]!r}. Mend or leave out "
            f"such rows ({len(wrong)} in all), or choose another of the columns {columns} with --{option}."
        )
    return column


def check_room(option: str, length: int, tokenizer: PreTrainedTokenizerBase, pair: bool = False) -> None:
    """Raise `CommandError` if texts that are cut to `length` tokens have none left but special ones."""
    special = tokenizer.num_special_tokens_to_add(pair)
    if length <= special:
        raise CommandError(f"--{option} {length}: {special} of them are special tokens, so no text would be left.")


def checkpoint_to_resume(args: TrainingArguments) -> str | None:
    """The checkpoint that `--resume_from_checkpoint` names; "last" is the newest in the output directory."""
    checkpoint = args.resume_from_checkpoint
    if checkpoint in (None, False, "false", "False"):
        return None
    if checkpoint not in ("last", "true", "True", True):
        if not Path(checkpoint, "trainer_state.json").is_file():
            raise CommandError(
                f"--resume_from_checkpoint {checkpoint} is no checkpoint of a run: it has no trainer_state.json. Name "
                "one, like out/checkpoint-500, or give `last` for the newest in --output_dir."
            )
        return checkpoint
    found = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    if found is None:
        raise CommandError(
            f"--resume_from_checkpoint {checkpoint}, but there is no checkpoint in "
            f"{args.output_dir}. Leave the option out to start, or name the checkpoint's directory."
        )
    return found


def train(trainer: Trainer, checkpoint: str | None) -> None:
    """Train, and save the model with its tokenizer."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    report(trainer, "train", result.metrics)


def report(trainer: Trainer, name: str, metrics: dict[str, float]) -> None:
    """Print the metrics, and write them to `<name>_results.json` and `all_results.json`."""
    trainer.log_metrics(name, metrics)
    trainer.save_metrics(name, metrics)


def predict(trainer: Trainer, rows: Dataset) -> PredictionOutput:
    """Predict in the order of the rows, and report the metrics.

    Told to train with `--train_sampling_strategy group_by_length`, `Trainer` would sort these rows by length too.
    """
    trainer.args.train_sampling_strategy = "random"  # training is over
    result = trainer.predict(rows, metric_key_prefix="predict")
    report(trainer, "predict", result.metrics)
    return result


def write_card(
    trainer: Trainer,
    model: PreTrainedModel,
    data: DataArguments,
    rows: dict[str, int],
    metrics: dict[str, float],
    settings: dict[str, Any],
) -> None:
    """Write the card of the model that was trained, and push both if `--push_to_hub` says so.

    Args:
        trainer: the one that trained it.
        model: the model.
        data: where the data is from.
        rows: number of rows of each split.
        metrics: what was measured on the validation data.
        settings: what else a reader has to know of the run, for the card of a patched model.
    """
    known: dict[str, Any] = {"dataset": data.name("validation" if "validation" in rows else "train")}
    if is_patched(model):
        measured = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        bookkeeping = ("runtime", "samples_per_second", "steps_per_second", "epoch", "samples")
        known["metrics"] = {name: value for name, value in measured.items() if name not in bookkeeping}
        used = {"train": "training data", "validation": "validation data"}
        known["training"] = {
            **{used[split]: f"{data.name(split)}, {count} rows" for split, count in rows.items() if split in used},
            **settings,
        }
    if trainer.args.push_to_hub:
        trainer.push_to_hub(**known)
    else:
        trainer.create_model_card(**known)


def run(main: Callable[[], Any]) -> int:
    """Run an example: what goes wrong by what it was given, and Ctrl-C, end in one line and an exit status."""
    return exit_status(Path(sys.argv[0]).name, main)
