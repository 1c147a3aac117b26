"""The classes of a classifier, of texts or of words: those of the data, and those that a checkpoint knows."""

from collections.abc import Collection
from dataclasses import dataclass, field

from arguments import DataArguments, ModelArguments
from transformers import PreTrainedConfig

from hf_relpos.cli.errors import CommandError


@dataclass
class ClassifierArguments(ModelArguments):
    """The classifier on top."""

    ignore_mismatched_sizes: bool = field(
        default=False,
        metadata={"help": "Replace a classifier that was trained for another number of labels."},
    )


def choose_classes(train_labels: list[str] | None, config: PreTrainedConfig) -> tuple[list[str], dict[str, int]]:
    """Return the names of the classifier's outputs, in order, and the output that each label stands for.

    A checkpoint that knows all training labels, by name or number, keeps its classes. Others make new ones.
    """
    names = [config.id2label[index] for index in range(config.num_labels)]
    classes = {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    if train_labels is None or set(train_labels) <= set(classes):
        return names, classes
    names = sorted(set(train_labels), key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return names, {name: i for i, name in enumerate(names)}


def check_classes(labels: dict[str, list[str]], names: list[str], known: Collection[str], data: DataArguments) -> None:
    """Raise `CommandError` for labels that no classifier can be trained on, or that this one does not know.

    Args:
        labels: the labels of each split.
        names: the names of the classifier's outputs.
        known: all that labels may be.
        data: where the labels are from.
    """
    if "train" in labels and len(set(labels["train"])) < 2:
        limit = "" if data.max_train_samples is None else f" (with --max_train_samples {data.max_train_samples})"
        raise CommandError(
            f"{data.given('train')} has only the label {labels['train'][0]!r}{limit}: there is nothing to tell apart. "
            "Give rows with at least two labels, or name another column with --label_column_name."
        )
    if len(names) < 2:
        raise CommandError(
            "The model has a single output, as for a regression: there are no classes to choose from. Give a model "
            "that was trained as a classifier, or --do_train."
        )
    for split, values in labels.items():
        if unknown := sorted(set(values) - set(known)):
            raise CommandError(
                f"{data.given(split)} has labels that the model does not: {unknown}. The model's: {names}."
            )


def check_outputs(config: PreTrainedConfig, names: list[str], head: str, args: ClassifierArguments) -> None:
    """Raise `CommandError` for a checkpoint of a classifier with another number of classes, unless it may be replaced.

    Args:
        config: of the checkpoint.
        names: the names of the classifier's outputs.
        head: how the classes of such models are called at the end.
        args: say whether it may be.
    """
    is_classifier = any(name.endswith(head) for name in config.architectures or ())
    if is_classifier and config.num_labels != len(names) and not args.ignore_mismatched_sizes:
        raise CommandError(
            f"--model_name_or_path {args.model_name_or_path} was trained for {config.num_labels} labels, and the "
            f"data has {len(names)}: {names}. Give --ignore_mismatched_sizes to replace its classifier by a new one."
        )
