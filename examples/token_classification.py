"""Fine-tune a pretrained encoder with relative positions to put a label on every word, as in named entities.

    python token_classification.py --model_name_or_path google-bert/bert-base-cased --train_file train.jsonl \
        --validation_file validation.jsonl --schemes shaw --do_train --do_eval --output_dir out

README.md in this directory has more. All options: --help.
"""

import json
import sys
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from arguments import FROM_ONE, DataArguments, parse_arguments
from common import check_room, checkpoint_to_resume, load_splits, predict, report, run, set_up, train, write_card
from datasets import ClassLabel, Dataset
from labels import ClassifierArguments, check_classes, check_outputs, choose_classes
from relpos_arguments import (
    RelPosArguments,
    RelPosTrainingArguments,
    apply_relpos,
    check_length,
    check_resume,
    max_length,
    trainer_for,
)
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    EvalPrediction,
    TrainingArguments,
)

from hf_relpos import is_patched, patch_report
from hf_relpos.cli.errors import CommandError
from hf_relpos.metrics import load_metric

NO_LABEL = -100  # of what counts for no loss: special tokens, padding, and all tokens of a word but its first


@dataclass
class TokenDataArguments(DataArguments):
    """Columns and lengths. Every row has a list of words and a list of as many labels."""

    text_column_name: str = field(default="tokens", metadata={"help": "Column of the words."})
    label_column_name: str = field(default="tags", metadata={"help": "Column of their labels: names or numbers."})
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Longer rows are cut to this many tokens. Default: 128, or what fits."},
    )

    def __post_init__(self):
        super().__post_init__()
        FROM_ONE.check(self, "max_seq_length")


def read_tags(dataset: Dataset, data: TokenDataArguments, given: str) -> list[list[str]]:
    """Return the labels of every row as text: their names where the data set has names, else the values."""
    for option in ("text_column_name", "label_column_name"):
        if (column := getattr(data, option)) not in dataset.column_names:
            raise CommandError(f"{given} has no column {column!r}: choose from {dataset.column_names} with --{option}.")
    rows = list(zip(dataset[data.text_column_name], dataset[data.label_column_name], strict=True))
    wrong = [number for number, row in enumerate(rows) if not _is_labelled(*row)]
    if wrong:
        words, tags = rows[wrong[0]]
        raise CommandError(
            f"{given}: every row must have a list of words in {data.text_column_name!r} and a list of as many names or "
            f"whole numbers in {data.label_column_name!r}, but row {wrong[0]} has {words!r} and {tags!r}. Mend or "
            f"leave out such rows ({len(wrong)} in all), or choose other columns with --text_column_name and "
            "--label_column_name."
        )
    feature = getattr(dataset.features[data.label_column_name], "feature", None)
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return [[name(tag) for tag in tags] for _, tags in rows]


def _is_labelled(words: object, tags: object) -> bool:
    return (
        isinstance(words, list)
        and isinstance(tags, list)
        and len(words) == len(tags)
        and all(isinstance(word, str) for word in words)
        and all(type(tag) in (str, int) for tag in tags)
    )


def compute_metrics(prediction: EvalPrediction, names: list[str]) -> dict[str, float]:
    """Over all words that have a label: accuracy, macro-F1, and the F1 of each class."""
    counted = prediction.label_ids != NO_LABEL
    predicted, expected = prediction.predictions.argmax(-1)[counted], prediction.label_ids[counted]
    words = {"predictions": predicted, "references": expected}
    f1 = load_metric("f1").compute(**words, average=None, labels=list(range(len(names))))["f1"]
    return {
        **load_metric("accuracy").compute(**words),
        "f1_macro": float(np.mean(f1)),
        **{f"f1_{name}": score for name, score in zip(names, f1, strict=True)},
    }


def main() -> dict[str, float]:
    model_args, data_args, relpos_args, learning_args, args = parse_arguments(
        ClassifierArguments, TokenDataArguments, RelPosArguments, RelPosTrainingArguments, TrainingArguments
    )
    set_up(args)
    checkpoint = checkpoint_to_resume(args)

    # Data and labels
    splits = load_splits(data_args, model_args, args)
    tags = {split: read_tags(dataset, data_args, data_args.given(split)) for split, dataset in splits.items()}
    labels = {split: list(chain.from_iterable(rows)) for split, rows in tags.items()}

    # Model
    config = model_args.load(AutoConfig.from_pretrained)
    names, classes = choose_classes(labels.get("train"), config)
    check_classes(labels, names, classes, data_args)
    check_outputs(config, names, "ForTokenClassification", model_args)
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    tokenizer = model_args.load_tokenizer()
    model = model_args.load(
        AutoModelForTokenClassification.from_pretrained,
        config=config,
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )
    apply_relpos(model, relpos_args)
    length = data_args.max_seq_length or min(max_length(model) or 128, 128)
    check_length(f"--max_seq_length {length}", length, model)
    check_room("max_seq_length", length, tokenizer)
    check_resume(checkpoint, model)
    if is_patched(model) and args.process_index == 0:
        print(patch_report(model))

    # Tokens
    def tokenize(batch: dict) -> dict:
        encoded = tokenizer(batch["words"], is_split_into_words=True, truncation=True, max_length=length)
        encoded["labels"] = [
            on_first_tokens([classes[tag] for tag in row], encoded.word_ids(number))
            for number, row in enumerate(batch["tags"])
        ]
        return encoded

    rows = {split: len(dataset) for split, dataset in splits.items()}
    with args.main_process_first(desc="tokenize"):
        for split, dataset in splits.items():
            known = Dataset.from_dict({"words": dataset[data_args.text_column_name], "tags": tags[split]})
            splits[split] = known.map(
                tokenize, batched=True, remove_columns=known.column_names, **data_args.map_options
            )

    trainer = trainer_for(model, learning_args)(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer, label_pad_token_id=NO_LABEL),
        compute_metrics=partial(compute_metrics, names=names),
    )
    metrics = {}
    if args.do_train:
        train(trainer, checkpoint)
    if args.do_eval:
        metrics = trainer.evaluate()
        report(trainer, "eval", metrics)
    if args.do_train:
        settings = {
            "tokens per row": f"up to {length}",
            "peak learning rate of tables and gates": learning_args.rate(args),
        }
        write_card(trainer, model, data_args, rows, metrics, settings)
    if args.do_predict:
        result = predict(trainer, splits["test"])
        if trainer.is_world_process_zero():
            chosen = zip(result.predictions.argmax(-1), result.label_ids, strict=True)
            lines = [json.dumps([names[k] for k in row[label != NO_LABEL]]) + "\n" for row, label in chosen]
            Path(args.output_dir, "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    return metrics


def on_first_tokens(labels: list[int], word_ids: list[int | None]) -> list[int]:
    """The label of each word for the first of its tokens; all other tokens have none.

    Args:
        labels: of the words.
        word_ids: of every token the word that it is of; None for a special token.
    """
    before = [None, *word_ids]
    return [
        NO_LABEL if word is None or word == last else labels[word] for word, last in zip(word_ids, before, strict=False)
    ]


if __name__ == "__main__":
    sys.exit(run(main))
