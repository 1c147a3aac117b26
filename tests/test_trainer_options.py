"""The Trainer's options do with a patched model what they do with a stock one.

A fresh patch whose added parameters are frozen computes what the stock model computes, before and after every step. So
everything the Trainer reports must agree, and every choice it makes on the way.
"""

from __future__ import annotations

import itertools

import pytest
import tiny
import torch
from pairwise import pairs
from peft import LoraConfig, get_peft_model
from tiny import ENCODER_DECODERS, build, choices
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_relpos import patch_model

LENGTHS = (9, 4, 7, 11, 5, 8, 3, 10, 6, 9, 4, 8)
# Of the clock and of the number of parameters; all else that the Trainer reports is compared.
INCOMPARABLE = ("runtime", "per_second", "total_flos")


def rows(count, seed=2):
    ids = tiny.tokens(count, max(LENGTHS), seed=seed)
    return [{"input_ids": row[:length], "labels": row[:length]} for row, length in zip(ids, itertools.cycle(LENGTHS))]


class Collator:
    """Pads, remembers what the Trainer asked for, and runs out of memory with too many rows, if told to."""

    def __init__(self, model, family, most=None):
        self.model, self.family, self.most = model, family, most
        self.asked = []

    def __call__(self, features):
        self.asked.append([len(row["input_ids"]) for row in features])
        if self.most is not None and len(features) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate too many bytes.")
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([row["input_ids"] for row in features], batch_first=True)
        labels = pad([row["labels"] for row in features], batch_first=True, padding_value=-100)
        batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
        if self.family in ENCODER_DECODERS:
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        return batch


def accuracy(prediction):
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    hit = (logits.argmax(-1) == prediction.label_ids)[prediction.label_ids != -100]
    measured = {"accuracy": hit.mean().item()}
    if prediction.inputs is not None:
        measured["inputs"] = float(prediction.inputs.sum())
    return measured


# name: (arguments of the Trainer's arguments, most rows that fit into memory)
OPTIONS = {
    "plain": ({}, None),
    "label smoothing": ({"label_smoothing_factor": 0.3}, None),
    "group by length": ({"train_sampling_strategy": "group_by_length"}, None),
    "auto find batch size": ({"auto_find_batch_size": True, "per_device_train_batch_size": 8}, 4),
    "gradient accumulation": ({"gradient_accumulation_steps": 3, "label_smoothing_factor": 0.3}, None),
    "evaluation": (
        {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "include_for_metrics": ["inputs", "loss"]},
        None,
    ),
    "evaluation in parts": ({"eval_strategy": "steps", "eval_steps": 3, "eval_accumulation_steps": 1}, None),
    "best model at the end": (
        {
            "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
            "load_best_model_at_end": True, "metric_for_best_model": "accuracy", "save_total_limit": 1,
            "learning_rate": 1.0,
        },
        None,
    ),
}  # fmt: skip


def fresh(stock, frozen):
    model = patch_model(stock, choices("sum", "gate", "head"))
    for parameter in tiny.added(model).values():
        parameter.requires_grad_(not frozen)
    return model


def trained(model, family, folder, option):
    """The Trainer after training, which begins with the seed that the Trainer sets when it is made."""
    arguments, most = OPTIONS[option]
    defaults = {
        "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4, "max_steps": 5, "logging_steps": 1,
        "learning_rate": 0.05, "optim": "sgd", "use_cpu": True, "report_to": [], "save_strategy": "no", "seed": 3,
        "disable_tqdm": True,
    }  # fmt: skip
    one = Trainer(
        model, TrainingArguments(str(folder), **{**defaults, **arguments}), data_collator=Collator(model, family, most),
        train_dataset=rows(32), eval_dataset=rows(6, seed=4), compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(2)] if arguments.get("load_best_model_at_end") else [],
    )  # fmt: skip
    one.train()
    return one


def history(one):
    return [
        {name: value for name, value in entry.items() if not name.endswith(INCOMPARABLE)}
        for entry in one.state.log_history
    ]


def assert_same_history(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=2e-4, abs=2e-4)


def pretrained(model):
    return {name: value for name, value in model.state_dict().items() if "relpos" not in name}


@pytest.mark.core
@pairs(option=OPTIONS, family=("bert", "gpt2", "t5"), apart=("option", "family"))
def test_option_does_what_it_does_for_the_stock_model(family, option, tmp_path):
    stock = trained(build(family), family, tmp_path / "stock", option)
    ours = trained(fresh(build(family), frozen=True), family, tmp_path / "ours", option)
    assert_same_history(history(ours), history(stock))
    assert ours.data_collator.asked == stock.data_collator.asked
    for attribute in ("global_step", "epoch", "train_batch_size", "best_global_step", "num_input_tokens_seen"):
        assert getattr(ours.state, attribute) == getattr(stock.state, attribute), attribute
    assert pretrained(ours.model).keys() == stock.model.state_dict().keys()
    for name, tensor in stock.model.state_dict().items():
        tiny.assert_close(ours.model.state_dict()[name], tensor, atol=2e-4)
    outputs = []
    for one in (ours, stock):
        set_seed(7)  # Transformers 5.15 groups by length, and so shuffles, here too
        outputs.append(one.predict(rows(5, seed=6)))
    mine, other = outputs
    assert mine.metrics.keys() == other.metrics.keys()
    assert mine.metrics["test_loss"] == pytest.approx(other.metrics["test_loss"], rel=2e-4)
    assert (mine.label_ids == other.label_ids).all()
    first = [out.predictions[0] if isinstance(out.predictions, tuple) else out.predictions for out in (mine, other)]
    tiny.assert_close(torch.tensor(first[0]), torch.tensor(first[1]), atol=2e-3)


@pairs(option=OPTIONS, family=("bert", "gpt2", "t5"), apart=("option", "family"))
def test_option_begins_alike_and_goes_the_same_way_when_the_tables_learn(family, option, tmp_path):
    model = fresh(build(family), frozen=False)
    before = {name: parameter.detach().clone() for name, parameter in tiny.added(model).items()}
    stock = trained(build(family), family, tmp_path / "stock", option)
    ours = trained(model, family, tmp_path / "ours", option)
    losses = [[entry["loss"] for entry in history(one) if "loss" in entry] for one in (ours, stock)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    if option != "best model at the end":  # what is best differs once the tables learn
        assert [entry.keys() for entry in history(ours)] == [entry.keys() for entry in history(stock)]
        assert ours.data_collator.asked == stock.data_collator.asked
    assert any(not torch.equal(parameter, before[name]) for name, parameter in tiny.added(ours.model).items())


def test_options_act_at_all(tmp_path):
    """What the tests above compare is not twice the plain Trainer."""
    runs = {}
    for option in OPTIONS:
        runs[option] = trained(fresh(build("gpt2"), frozen=True), "gpt2", tmp_path / option, option)
    losses = {option: history(one)[0].get("loss") for option, one in runs.items()}
    assert losses["label smoothing"] != pytest.approx(losses["plain"], rel=1e-3)
    grouped, plain = (runs[option].data_collator.asked for option in ("group by length", "plain"))
    assert sum(max(pair) - min(pair) for pair in grouped) < sum(max(pair) - min(pair) for pair in plain)
    assert runs["auto find batch size"].state.train_batch_size <= 4
    assert len(runs["auto find batch size"].data_collator.asked[0]) == 8
    best = runs["best model at the end"]
    assert best.state.best_global_step < best.state.global_step
    assert "eval_inputs" in runs["evaluation"].evaluate()


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_label_smoothing_behind_an_adapter_is_that_of_the_stock_model(family, tmp_path):
    """Whether labels are shifted goes by the name of the model's class, also inside PEFT."""
    targets = {"bert": ["query"], "gpt2": ["c_attn"], "t5": ["q"]}[family]
    runs = []
    for name, model in (("stock", build(family)), ("ours", fresh(build(family), frozen=True))):
        torch.manual_seed(5)
        adapted = get_peft_model(model, LoraConfig(target_modules=targets, fan_in_fan_out=family == "gpt2"))
        runs.append(trained(adapted, family, tmp_path / name, "label smoothing"))
    assert_same_history(history(runs[1]), history(runs[0]))


@pytest.mark.core
@pairs(family=ENCODER_DECODERS, beams=(1, 3), apart=("family", "beams"))
def test_predict_with_generate_gives_what_the_stock_model_gives(family, beams, tmp_path):
    results = []
    for name, model in (("stock", build(family)), ("ours", fresh(build(family), frozen=True))):
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path / name), predict_with_generate=True, generation_max_length=9, generation_num_beams=beams,
            per_device_eval_batch_size=4, per_device_train_batch_size=2, max_steps=3, eval_strategy="steps",
            eval_steps=2, learning_rate=0.05, optim="sgd", logging_steps=1, use_cpu=True, report_to=[],
            save_strategy="no", seed=3, disable_tqdm=True,
        )  # fmt: skip
        one = Seq2SeqTrainer(
            model, arguments, data_collator=Collator(model, family), train_dataset=rows(32),
            eval_dataset=rows(6, seed=4), compute_metrics=lambda out: {"tokens": float(out.predictions.sum())},
        )  # fmt: skip
        one.train()
        results.append((one, one.predict(rows(6, seed=7))))
    (stock, theirs), (ours, mine) = results
    assert_same_history(history(ours), history(stock))
    assert mine.predictions.shape == theirs.predictions.shape
    assert (mine.predictions == theirs.predictions).all()
    assert mine.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=2e-4)


def test_seq2seq_collator_prepares_the_decoder_as_for_the_stock_model():
    class Padding:
        """The little that the collator asks of a tokenizer."""

        padding_side = "right"

        def pad(self, features, **kwargs):
            ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in features], batch_first=True)
            return {"input_ids": ids}

    features = [{"input_ids": row["input_ids"], "labels": row["labels"].tolist()} for row in rows(3)]
    batches = [
        DataCollatorForSeq2Seq(Padding(), model=model)([dict(row) for row in features])
        for model in (build("t5"), fresh(build("t5"), frozen=True))
    ]
    for name in ("labels", "decoder_input_ids"):
        assert torch.equal(torch.as_tensor(batches[0][name]), torch.as_tensor(batches[1][name])), name
