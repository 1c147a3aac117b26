"""What the three examples share besides relative positions: arguments, data splits, checkpoints."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import datasets
import transformers
from datasets import Dataset, load_dataset
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    """Which pretrained model to start from."""

    model_name_or_path: str = field(metadata={"help": "Hub id or local directory, patched or not."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Hub id or directory of the tokenizer, if it is not the model's."}
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the Hub."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    token: str | None = field(default=None, metadata={"help": "Hub token, if the login's is not wanted."})

    @property
    def hub_options(self) -> dict:
        return {"revision": self.model_revision, "cache_dir": self.cache_dir, "token": self.token}


@dataclass
class DataArguments:
    """Which data to read: a data set from the Hub, or files."""

    file_types: ClassVar[dict[str, str]] = {"csv": "csv", "json": "json", "jsonl": "json"}

    dataset_name: str | None = field(default=None, metadata={"help": "Hub id or local directory."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    train_file: str | None = field(default=None, metadata={"help": "Training data, instead of a data set."})
    validation_file: str | None = field(default=None, metadata={"help": "Data for --do_eval."})
    test_file: str | None = field(default=None, metadata={"help": "Data for --do_predict."})
    train_split_name: str = field(default="train", metadata={"help": "The data set's split to train on."})
    validation_split_name: str = field(default="validation", metadata={"help": "Its split for --do_eval."})
    test_split_name: str = field(default="test", metadata={"help": "Its split for --do_predict."})
    validation_split_percentage: float | None = field(
        default=None,
        metadata={"help": "Take this share of the training data for --do_eval, with the run's seed."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only the first N."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only the first N."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use only the first N."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again even if that is cached."})

    @property
    def files(self) -> dict[str, str]:
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: path for split, path in files.items() if path is not None}

    @property
    def map_options(self) -> dict:
        return {"num_proc": self.preprocessing_num_workers, "load_from_cache_file": not self.overwrite_cache}

    def __post_init__(self):
        if self.dataset_name is not None and self.files:
            raise ValueError(
                f"--dataset_name {self.dataset_name} and files ({', '.join(self.files.values())}) were "
                "given: give one or the other."
            )
        if self.dataset_name is None and not self.files:
            raise ValueError("No data: give --dataset_name, or --train_file, --validation_file or --test_file.")
        for path in self.files.values():
            if Path(path).suffix[1:] not in self.file_types:
                raise ValueError(f"{path}: expected a file that ends in .{', .'.join(self.file_types)}.")
        percentage = self.validation_split_percentage
        if percentage is not None:
            if not 0 < percentage < 100:
                raise ValueError(f"--validation_split_percentage {percentage} is not between 0 and 100.")
            if self.validation_file is not None:
                raise ValueError("Give --validation_file or --validation_split_percentage, not both.")
        check_at_least(1, self, "max_train_samples", "max_eval_samples", "max_predict_samples")


def check_at_least(least: int, arguments: object, *names: str) -> None:
    """Raise `ValueError` if one of the options that these arguments name is given, and less than `least`."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} {value} was given, but it must be a whole number of at least {least}.")


def parse_arguments(*argument_types: type) -> tuple:
    """Read the command line, or the one .json or .yaml file it names, into dataclasses.

    A value that they refuse ends the program with one line and exit status 2, as an unknown option does.
    """
    parser = HfArgumentParser(argument_types)
    try:
        if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
            return parser.parse_json_file(sys.argv[1])
        if len(sys.argv) == 2 and sys.argv[1].endswith((".yaml", ".yml")):
            return parser.parse_yaml_file(sys.argv[1])
        return parser.parse_args_into_dataclasses()
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def set_up_logging(args: TrainingArguments) -> None:
    """Log from every process as `--log_level` and `--log_level_replica` say."""
    level = args.get_process_log_level()
    for library in (datasets, transformers):
        library.utils.logging.set_verbosity(level)
    transformers.utils.logging.enable_explicit_format()


def load_file(path: str, data: DataArguments, model_args: ModelArguments) -> Dataset:
    kind = data.file_types[Path(path).suffix[1:]]
    options = {"keep_linebreaks": True} if kind == "text" else {}
    return load_dataset(kind, data_files=path, split="train", cache_dir=model_args.cache_dir, **options)


def load_splits(data: DataArguments, model_args: ModelArguments, args: TrainingArguments) -> dict[str, Dataset]:
    """Return the splits the run needs, under "train", "validation" and "test".

    Raises:
        ValueError: there is nothing to do, or data for something to do is missing.
    """
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    if not any(wanted.values()):
        raise ValueError("Nothing to do: give one or several of --do_train, --do_eval, --do_predict.")
    cut = data.validation_split_percentage
    with args.main_process_first(desc="load the data"):
        if data.dataset_name is not None:
            raw = load_dataset(
                data.dataset_name,
                data.dataset_config_name,
                cache_dir=model_args.cache_dir,
                token=model_args.token,
            )
            names = [data.train_split_name, data.validation_split_name, data.test_split_name]
        else:
            raw = {split: load_file(path, data, model_args) for split, path in data.files.items()}
            names = list(wanted)
        splits = {split: raw[name] for split, name in zip(wanted, names, strict=True) if name in raw}
        if cut is not None and "train" in splits:
            parts = splits["train"].train_test_split(test_size=cut / 100, seed=args.seed)
            splits["train"], splits["validation"] = parts["train"], parts["test"]

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
            raise ValueError(f"{actions[split]} needs {split} data; there is: {', '.join(raw)}. Please {way_out}.")
        elif limits[split] is not None:
            splits[split] = splits[split].select(range(min(limits[split], len(splits[split]))))
    return splits


def text_column(option: str, name: str | None, default: str, dataset: Dataset) -> str:
    """Return the column of texts to read: `name`, else `default`, else the only one there is.

    Raises:
        ValueError: there is no such column, or not every row of it holds text.
    """
    columns = dataset.column_names
    column = name or (columns[0] if len(columns) == 1 else default)
    if column not in columns:
        raise ValueError(f"There is no column {column!r} in the data: choose from {columns} with --{option}.")
    wrong = [(row, value) for row, value in enumerate(dataset[column]) if not isinstance(value, str)]
    if wrong:
        raise ValueError(
            f"Column {column!r} must hold text, but row {wrong[0][0]} has {wrong[0][1]!r}. Mend or leave out "
            f"such rows ({len(wrong)} in all), or choose another of the columns {columns} with --{option}."
        )
    return column


def checkpoint_to_resume(args: TrainingArguments) -> str | None:
    """The checkpoint that `--resume_from_checkpoint` names; "last" is the newest in the output directory."""
    if args.resume_from_checkpoint not in ("last", "true", "True", True):
        return args.resume_from_checkpoint
    checkpoint = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    if checkpoint is None:
        raise ValueError(
            f"--resume_from_checkpoint {args.resume_from_checkpoint}, but there is no checkpoint in "
            f"{args.output_dir}. Leave the option out to start, or name the checkpoint's directory."
        )
    return checkpoint


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
