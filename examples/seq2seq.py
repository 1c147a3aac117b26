"""Fine-tune a pretrained encoder-decoder with relative positions on pairs of texts, as in summarization.

    python seq2seq.py --model_name_or_path google-t5/t5-small --dataset_name abisee/cnn_dailymail \
        --dataset_config_name 3.0.0 --text_column article --summary_column highlights \
        --source_prefix "summarize: " --schemes shaw --native keep --do_train --do_eval \
        --predict_with_generate --output_dir out

README.md in this directory has more. All options: --help.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from arguments import FROM_ONE, DataArguments, ModelArguments, parse_arguments
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
from relpos_arguments import (
    RelPosArguments,
    RelPosTrainingArguments,
    apply_relpos,
    check_length,
    check_resume,
    trainer_for,
)
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_relpos import is_patched, patch_report
from hf_relpos.cli.errors import CommandError


@dataclass
class Seq2SeqDataArguments(DataArguments):
    """Columns and lengths."""

    text_column: str | None = field(default=None, metadata={"help": "Column to read from. Default: text."})
    summary_column: str | None = field(default=None, metadata={"help": "Column to learn. Default: summary."})
    source_prefix: str = field(default="", metadata={"help": "Put before every text, as T5 expects it."})
    max_source_length: int = field(default=512, metadata={"help": "Longer texts are cut to this many tokens."})
    max_target_length: int = field(
        default=128,
        metadata={
            "help": "The same for summaries; generation stops there too, unless --generation_max_length is given."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        FROM_ONE.check(self, "max_source_length", "max_target_length")


def token_f1(prediction: str, reference: str) -> float:
    """Return the F1, from 0 to 1, of the words that `prediction` and `reference` share, in any order."""
    predicted, expected = prediction.split(), reference.split()
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected)) if predicted or expected else 1.0


def decode(tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    tokens = np.where(tokens == -100, tokenizer.pad_token_id, tokens)  # -100 marks what counts for no loss
    return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def main() -> dict[str, float]:
    model_args, data_args, relpos_args, learning_args, args = parse_arguments(
        ModelArguments, Seq2SeqDataArguments, RelPosArguments, RelPosTrainingArguments, Seq2SeqTrainingArguments
    )
    if args.do_predict and not args.predict_with_generate:
        raise CommandError("--do_predict writes generated texts: give --predict_with_generate too.")
    set_up(args)
    checkpoint = checkpoint_to_resume(args)
    splits = load_splits(data_args, model_args, args)

    # Model
    tokenizer = model_args.load_tokenizer()
    model = model_args.load(AutoModelForSeq2SeqLM.from_pretrained)
    if model.config.decoder_start_token_id is None:
        raise CommandError(
            f"The config of {model_args.model_name_or_path} has no decoder_start_token_id, the token that "
            "the decoder starts with: set it there."
        )
    apply_relpos(model, relpos_args)
    for option in ("max_source_length", "max_target_length"):
        check_length(f"--{option}", getattr(data_args, option), model)
        check_room(option, getattr(data_args, option), tokenizer)
    check_resume(checkpoint, model)
    if is_patched(model) and args.process_index == 0:
        print(patch_report(model))

    # Tokens
    def tokenize(batch: dict) -> dict:
        texts = [data_args.source_prefix + text for text in batch[source]]
        inputs = tokenizer(texts, truncation=True, max_length=data_args.max_source_length)
        targets = tokenizer(text_target=batch[target], truncation=True, max_length=data_args.max_target_length)
        return {**inputs, "labels": targets["input_ids"]}

    rows = {split: len(dataset) for split, dataset in splits.items()}
    with args.main_process_first(desc="tokenize"):
        for split, dataset in splits.items():
            given = data_args.given(split)
            source = text_column("text_column", data_args.text_column, "text", dataset, given)
            target = text_column("summary_column", data_args.summary_column, "summary", dataset, given)
            splits[split] = dataset.map(
                tokenize, batched=True, remove_columns=dataset.column_names, **data_args.map_options
            )

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        pairs = list(
            zip(
                decode(prediction.predictions, tokenizer),
                decode(prediction.label_ids, tokenizer),
                strict=True,
            )
        )
        return {
            "exact_match": float(np.mean([text == reference for text, reference in pairs])),
            "token_f1": float(np.mean([token_f1(text, reference) for text, reference in pairs])),
        }

    if args.generation_max_length is None:
        args.generation_max_length = data_args.max_target_length + 1  # the decoder's start token counts
    trainer = trainer_for(model, learning_args, Seq2SeqTrainer)(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=compute_metrics if args.predict_with_generate else None,
    )
    metrics = {}
    if args.do_train:
        train(trainer, checkpoint)
    if args.do_eval:
        metrics = trainer.evaluate()
        report(trainer, "eval", metrics)
    if args.do_train:
        settings = {
            "before every text": repr(data_args.source_prefix),
            "tokens per text": f"up to {data_args.max_source_length}",
            "tokens per summary": f"up to {data_args.max_target_length}",
            "peak learning rate of tables and gates": learning_args.rate(args),
        }
        write_card(trainer, model, data_args, rows, metrics, settings)
    if args.do_predict:
        result = predict(trainer, splits["test"])
        if trainer.is_world_process_zero():
            texts = decode(result.predictions, tokenizer)
            Path(args.output_dir, "generated_predictions.txt").write_text(
                "".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8"
            )
    return metrics


if __name__ == "__main__":
    sys.exit(run(main))
