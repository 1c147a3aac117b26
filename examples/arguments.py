"""The arguments that the examples share besides relative positions, and how all are read and checked."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from transformers import AutoTokenizer, HfArgumentParser, PreTrainedTokenizerBase, TrainingArguments

from hf_relpos.cli.errors import CommandError
from hf_relpos.cli.files import TABLES, check_ending
from hf_relpos.cli.loading import loading
from hf_relpos.cli.output import check_folder


@dataclass(frozen=True)
class Numbers:
    """The numbers that an option may have: at least `least`, and less than `below`."""

    words: str
    least: float
    below: float = math.inf
    kind: type | tuple[type, ...] = (int, float)

    def check(self, arguments: object, *names: str) -> None:
        """Raise `CommandError` if one of the options that these arguments name is given, and not such a number."""
        for name in names:
            value = getattr(arguments, name)
            fits = isinstance(value, self.kind) and self.least <= value < self.below  # which no NaN does
            if value is not None and not fits:
                raise CommandError(f"--{name} {value} was given, but it must be {self.words}.")


FROM_ZERO = Numbers("a whole number of at least 0", 0, kind=int)
FROM_ONE = Numbers("a whole number of at least 1", 1, kind=int)
FROM_TWO = Numbers("a whole number of at least 2", 2, kind=int)
FINITE = Numbers("a finite number of at least 0", 0)
POSITIVE = Numbers("a finite number above 0", sys.float_info.min)
BELOW_ONE = Numbers("a number of at least 0 and below 1", 0, 1)
SEED = Numbers(f"a whole number from 0 to {2**32 - 1}", 0, 2**32, kind=int)

# Numbers that Transformers takes and then does nothing with, or stops at in the middle without naming an option.
TRAINING_NUMBERS = {
    "seed": SEED,
    "data_seed": SEED,
    "per_device_train_batch_size": FROM_ONE,
    "per_device_eval_batch_size": FROM_ONE,
    "gradient_accumulation_steps": FROM_ONE,
    "eval_accumulation_steps": FROM_ONE,
    "dataloader_num_workers": FROM_ZERO,
    "generation_max_length": FROM_ONE,
    "generation_num_beams": FROM_ONE,
    "learning_rate": FINITE,
    "weight_decay": FINITE,
    "max_grad_norm": FINITE,
    "adam_epsilon": FINITE,
    "neftune_noise_alpha": FINITE,
    "adam_beta1": BELOW_ONE,
    "adam_beta2": BELOW_ONE,
    "label_smoothing_factor": BELOW_ONE,
}


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

    def __post_init__(self):
        if self.cache_dir is not None and Path(self.cache_dir).is_file():
            raise CommandError(f"--cache_dir {self.cache_dir} is a file. Give a folder.")

    @property
    def hub_options(self) -> dict:
        return {"revision": self.model_revision, "cache_dir": self.cache_dir, "token": self.token}

    def load(self, load: Callable[..., Any], **options: Any) -> Any:
        """What `load`, a `from_pretrained`, makes of the model's folder or id."""
        with loading("--model_name_or_path", self.model_name_or_path):
            return load(self.model_name_or_path, **self.hub_options, **options)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer_name is None:
            return self.load(AutoTokenizer.from_pretrained)
        with loading("--tokenizer_name", self.tokenizer_name, "a tokenizer"):
            return AutoTokenizer.from_pretrained(self.tokenizer_name, **self.hub_options)


@dataclass
class DataArguments:
    """Which data to read: a data set from the Hub, or files."""

    file_types: ClassVar[dict[str, str]] = TABLES

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
    def split_names(self) -> dict[str, str]:
        return {"train": self.train_split_name, "validation": self.validation_split_name, "test": self.test_split_name}

    @property
    def map_options(self) -> dict:
        return {"num_proc": self.preprocessing_num_workers, "load_from_cache_file": not self.overwrite_cache}

    def given(self, split: str) -> str:
        """How the data of a split was asked for, for errors."""
        if self.dataset_name is not None:
            split = "train" if split == "validation" and self.validation_split_percentage else split
            return f"--dataset_name {self.dataset_name}, split {self.split_names[split]!r},"
        split = split if split in self.files else "train"
        return f"--{split}_file {self.files[split]}"

    def name(self, split: str) -> str:
        """What the data of a split is called in a model card: no path, which is nobody else's business."""
        if self.dataset_name is None:
            return Path(self.files.get(split, self.train_file)).name
        name = Path(self.dataset_name).name if Path(self.dataset_name).is_dir() else self.dataset_name
        return " ".join(filter(None, [name, self.dataset_config_name]))

    def __post_init__(self):
        if self.dataset_name is not None and self.files:
            raise CommandError(
                f"--dataset_name {self.dataset_name} and files ({', '.join(self.files.values())}) were "
                "given: give one or the other."
            )
        if self.dataset_name is None and not self.files:
            raise CommandError("No data: give --dataset_name, or --train_file, --validation_file or --test_file.")
        for split, path in self.files.items():
            check_ending(f"--{split}_file", path, self.file_types)
        percentage = self.validation_split_percentage
        if percentage is not None:
            if not 0 < percentage < 100:
                raise CommandError(f"--validation_split_percentage {percentage} is not between 0 and 100.")
            if self.validation_file is not None:
                raise CommandError("Give --validation_file or --validation_split_percentage, not both.")
        FROM_ONE.check(
            self, "max_train_samples", "max_eval_samples", "max_predict_samples", "preprocessing_num_workers"
        )


def parse_arguments(*argument_types: type) -> tuple:
    """Read the command line, or the one .json or .yaml file it names, into dataclasses.

    What they refuse ends the program with one line and exit status 2, as an unknown option does.
    """
    parser = OneLineParser(argument_types)
    file = sys.argv[1] if len(sys.argv) == 2 and sys.argv[1].endswith((".json", ".yaml", ".yml")) else None
    try:
        parsed = parser.parse_args_into_dataclasses() if file is None else parser.parse_dict(read_arguments(file))
        for arguments in parsed:
            if isinstance(arguments, TrainingArguments):
                check_training(arguments)
    except (ValueError, TypeError, ImportError) as error:
        parser.error(str(error) if file is None else f"{file}: {error}")
    return parsed


class OneLineParser(HfArgumentParser):
    """A parser that does not print its hundred options when one of them is wrong."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def read_arguments(file: str) -> dict:
    """The names and values in a .json or .yaml file."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        values = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise CommandError(f"it cannot be read: {error.strerror}.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise CommandError(f"it is no {Path(file).suffix[1:].upper()}: {error}") from error
    if not isinstance(values, dict):
        raise CommandError("it must hold options and their values, like `train_file: book.txt`.")
    return values


def check_training(args: TrainingArguments) -> None:
    """Raise `CommandError` for a number or a folder with which a run cannot go well. Writes nothing."""
    for name, numbers in TRAINING_NUMBERS.items():
        if hasattr(args, name):
            numbers.check(args, name)
    if args.max_steps != -1:  # which leaves it to the epochs
        FROM_ONE.check(args, "max_steps")
    else:
        POSITIVE.check(args, "num_train_epochs")
    check_folder("--output_dir", Path(args.output_dir))
