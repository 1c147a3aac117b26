"""Fine-tune a pretrained encoder with relative positions on text classification.

    python text_classification.py --model_name_or_path bert-base-uncased --dataset_name stanfordnlp/imdb \
        --validation_split_name test --schemes shaw --do_train --do_eval --output_dir out

README.md in this directory has more. All options: --help.
"""

import csv
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from arguments import FROM_ONE, DataArguments, parse_arguments
from common import (
    check_room,
    checkpoint_to_resume,
    load_splits,
    predict,
    report,
    run,
    set_up,
    text_column,
    train,
    write_card,
)
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
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    TrainingArguments,
)

from hf_relpos import is_patched, patch_report
from hf_relpos.cli.errors import CommandError
from hf_relpos.metrics import load_metric


@dataclass
class ClassificationDataArguments(DataArguments):
    """Columns and lengths. Labels may be names or whole numbers."""

    text_column_name: str | None = field(default=None, metadata={"help": "Default: text."})
    text_pair_column_name: str | None = field(
        default=None, metadata={"help": "Column of the second text, for tasks on pairs."}
    )
    label_column_name: str = field(default="label", metadata={"help": "Column of the label."})
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Longer texts are cut to this many tokens. Default: 128, or what fits."},
    )

    def __post_init__(self):
        super().__post_init__()
        FROM_ONE.check(self, "max_seq_length")


def read_labels(dataset: Dataset, column: str, given: str) -> list[str]:
    """Return the label of every row as text: its name where the data set has names, else the value."""
    if column not in dataset.column_names:
        raise CommandError(
            f"{given} has no column {column!r}: choose from {dataset.column_names} with --label_column_name."
        )
    feature, values = dataset.features[column], list(dataset[column])
    if isinstance(feature, ClassLabel):
        return [feature.int2str(value) for value in values]
    wrong = [(row, value) for row, value in enumerate(values) if type(value) not in (str, int)]
    if wrong:
        raise CommandError(
            f"{given}: column {column!r} must hold names or whole numbers, but row {wrong[0][0]} has {wrong[0][1]!r}. "
            f"Mend or leave out such rows ({len(wrong)} in all), or choose another column with "
            "--label_column_name."
        )
    return [str(value) for value in values]


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    classes = predicted_classes(prediction.predictions)
    accuracy = load_metric("accuracy").compute(predictions=classes, references=prediction.label_ids)
    f1 = load_metric("f1").compute(predictions=classes, references=prediction.label_ids, average="macro")
    return {"accuracy": accuracy["accuracy"], "f1_macro": f1["f1"]}


def predicted_classes(predictions) -> np.ndarray:
    logits = predictions[0] if isinstance(predictions, tuple) else predictions  # T5 returns more than logits
    return np.argmax(logits, axis=-1)


def main() -> dict[str, float]:
    model_args, data_args, relpos_args, learning_args, args = parse_arguments(
        ClassifierArguments, ClassificationDataArguments, RelPosArguments, RelPosTrainingArguments, TrainingArguments
    )
    set_up(args)
    checkpoint = checkpoint_to_resume(args)

    # Data and labels
    splits = load_splits(data_args, model_args, args)
    for split, dataset in splits.items():
        given = data_args.given(split)
        text = text_column("text_column_name", data_args.text_column_name, "text", dataset, given)
        if pair := data_args.text_pair_column_name:
            text_column("text_pair_column_name", pair, pair, dataset, given)
    label = data_args.label_column_name
    labels = {}
    for split, dataset in splits.items():
        no_labels = label not in dataset.column_names or -1 in list(dataset[label])  # -1: not published
        if split != "test" or not no_labels:
            labels[split] = read_labels(dataset, label, data_args.given(split))

    # Model
    config = model_args.load(AutoConfig.from_pretrained)
    names, classes = choose_classes(labels.get("train"), config)
    check_classes(labels, names, classes, data_args)
    check_outputs(config, names, "ForSequenceClassification", model_args)
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    config.problem_type = "single_label_classification"  # whatever the checkpoint was trained for
    tokenizer = model_args.load_tokenizer()
    model = model_args.load(
        AutoModelForSequenceClassification.from_pretrained,
        config=config,
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )
    if tokenizer.pad_token is None:  # as in GPT-2
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    apply_relpos(model, relpos_args)
    length = data_args.max_seq_length or min(max_length(model) or 128, 128)
    check_length(f"--max_seq_length {length}", length, model)
    check_room("max_seq_length", length, tokenizer, pair is not None)
    check_resume(checkpoint, model)
    if is_patched(model) and args.process_index == 0:
        print(patch_report(model))

    # Tokens
    def tokenize(batch: dict) -> dict:
        texts = [batch[text]] if pair is None else [batch[text], batch[pair]]
        return tokenizer(*texts, truncation=True, max_length=length)

    rows = {split: len(dataset) for split, dataset in splits.items()}
    with args.main_process_first(desc="tokenize"):
        for split, dataset in splits.items():
            encoded = dataset.map(tokenize, batched=True, remove_columns=dataset.column_names, **data_args.map_options)
            if split in labels:
                encoded = encoded.add_column("labels", [classes[name] for name in labels[split]])
            splits[split] = encoded

    trainer = trainer_for(model, learning_args)(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
    )
    metrics = {}
    if args.do_train:
        train(trainer, checkpoint)
    if args.do_eval:
        metrics = trainer.evaluate()
        report(trainer, "eval", metrics)
    if args.do_train:
        settings = {
            "tokens per text": f"up to {length}",
            "peak learning rate of tables and gates": learning_args.rate(args),
        }
        write_card(trainer, model, data_args, rows, metrics, settings)
    if args.do_predict:
        result = predict(trainer, splits["test"])
        if trainer.is_world_process_zero():
            with open(Path(args.output_dir, "predictions.csv"), "w", newline="") as file:
                rows = [(i, names[k]) for i, k in enumerate(predicted_classes(result.predictions))]
                csv.writer(file).writerows([("index", "prediction"), *rows])
    return metrics


if __name__ == "__main__":
    sys.exit(run(main))
