"""Fine-tune a pretrained causal language model with relative positions; report its perplexity.

    python causal_lm.py --model_name_or_path openai-community/gpt2 --dataset_name Salesforce/wikitext \
        --dataset_config_name wikitext-2-raw-v1 --schemes shaw --do_train --do_eval --output_dir out

README.md in this directory has more. All options: --help.
"""

import math
import sys
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from arguments import FROM_ONE, FROM_TWO, DataArguments, ModelArguments, parse_arguments
from common import checkpoint_to_resume, load_splits, report, run, set_up, text_column, train, write_card
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
    AutoModelForCausalLM,
    PreTrainedModel,
    TrainingArguments,
    default_data_collator,
)

from hf_relpos import is_patched, patch_report
from hf_relpos.cli.errors import CommandError


@dataclass
class LanguageModelDataArguments(DataArguments):
    """Texts are joined and cut into blocks of equal length."""

    file_types: ClassVar[dict[str, str]] = {**DataArguments.file_types, "txt": "text"}

    text_column_name: str | None = field(default=None, metadata={"help": "Default: text."})
    block_size: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per block. With --native drop it may exceed the length that the model was "
            "pretrained with. Default: that length, at most 1024."
        },
    )
    add_eos: bool = field(default=False, metadata={"help": "End every row with the end-of-text token."})

    def __post_init__(self):
        super().__post_init__()
        FROM_TWO.check(self, "block_size")  # of one token, none is predicted


@dataclass
class GenerationArguments:
    """A text to go on with when all else is done."""

    generate: str | None = field(default=None, metadata={"help": "Beginning of a text for the model to continue."})
    generate_tokens: int = field(default=50, metadata={"help": "How many tokens to add at most."})

    def __post_init__(self):
        FROM_ONE.check(self, "generate_tokens")


def load_model(model_args: ModelArguments) -> PreTrainedModel:
    config = model_args.load(AutoConfig.from_pretrained)
    if getattr(config, "is_decoder", True) is False:  # BERT: without this every token would see the next ones
        config.is_decoder = True
    model = model_args.load(AutoModelForCausalLM.from_pretrained, config=config)
    # What the loss is in any case. Trainer does not know it of classes named otherwise (GPT2LMHeadModel), and would
    # divide the loss of the predicted tokens by the number of all tokens, the first of each block included.
    model.loss_type = "ForCausalLM"
    return model


def main() -> dict[str, float]:
    model_args, data_args, relpos_args, learning_args, generation_args, args = parse_arguments(
        ModelArguments,
        LanguageModelDataArguments,
        RelPosArguments,
        RelPosTrainingArguments,
        GenerationArguments,
        TrainingArguments,
    )
    set_up(args)
    checkpoint = checkpoint_to_resume(args)
    splits = load_splits(data_args, model_args, args)
    if "test" in splits:
        raise CommandError("--do_predict has no meaning for a language model: leave it out, or use --do_eval.")

    # Model
    tokenizer = model_args.load_tokenizer()
    model = load_model(model_args)
    apply_relpos(model, relpos_args)
    block_size = data_args.block_size or min(max_length(model) or 1024, 1024)
    check_length(f"--block_size {block_size}", block_size, model)
    check_resume(checkpoint, model)
    if (prompt := generation_args.generate) is not None:
        prompt = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False, add_special_tokens=False)
        new_tokens = generation_args.generate_tokens
        if prompt["input_ids"].shape[1] == 0:
            raise CommandError(f"--generate {generation_args.generate!r} has no tokens: give a word or more.")
        check_length(
            f"--generate with --generate_tokens {new_tokens}",
            prompt["input_ids"].shape[1] + new_tokens,
            model,
        )
    if is_patched(model) and args.process_index == 0:
        print(patch_report(model))

    # Blocks of tokens
    end = tokenizer.eos_token if data_args.add_eos else ""
    if end is None:
        raise CommandError("--add_eos, but the tokenizer has no eos_token: leave the option out.")

    def to_blocks(batch: dict) -> dict:
        texts = [text + end for text in batch[column]]
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = list(chain.from_iterable(encoded))
        starts = range(0, len(tokens) - block_size + 1, block_size)  # the rest is not used
        blocks = [tokens[start : start + block_size] for start in starts]
        return {"input_ids": blocks, "labels": [list(block) for block in blocks]}

    rows = {split: len(dataset) for split, dataset in splits.items()}
    with args.main_process_first(desc="tokenize"):
        for split, dataset in splits.items():
            column = text_column(
                "text_column_name", data_args.text_column_name, "text", dataset, data_args.given(split)
            )
            splits[split] = dataset.map(
                to_blocks, batched=True, remove_columns=dataset.column_names, **data_args.map_options
            )
            if len(splits[split]) == 0:
                raise CommandError(
                    f"{data_args.given(split)} has fewer tokens than one block of {block_size}: lower --block_size, "
                    "or give more text."
                )

    trainer = trainer_for(model, learning_args)(
        model=model,
        args=args,
        train_dataset=splits.get("train"),
        eval_dataset=splits.get("validation"),
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    metrics = {}
    if args.do_train:
        train(trainer, checkpoint)
    if args.do_eval:
        trainer.label_smoother = None  # smoothing is for training: no perplexity follows from a smoothed loss
        metrics = trainer.evaluate()
        metrics["eval_perplexity"] = math.exp(min(metrics["eval_loss"], 700))  # 710 would overflow
        report(trainer, "eval", metrics)
    if args.do_train:
        settings = {"tokens per block": block_size, "peak learning rate of tables and gates": learning_args.rate(args)}
        write_card(trainer, model, data_args, rows, metrics, settings)
    if prompt is not None and trainer.is_world_process_zero():
        model.eval()
        tokens = model.generate(**prompt.to(model.device), max_new_tokens=new_tokens, do_sample=False)
        print(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return metrics


if __name__ == "__main__":
    sys.exit(run(main))
