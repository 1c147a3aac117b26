"""Training: every added parameter learns, the Trainer treats a patched model as it treats a stock one, DDP works."""

from __future__ import annotations

import inspect

import datasets
import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import FAMILIES, KINDS, NATIVE, assert_close, build, choices, patched
from transformers import Trainer, TrainingArguments

from hf_relpos import RelPosConfig, Shaw, T5Bias, patch_model, unpatch_model


@pairs(family=FAMILIES, native=NATIVE, apart=("family", "native"))
def test_loss_falls_and_every_added_parameter_moves(family, native):
    model = patch_model(build(family), choices("sum", native, "head"))
    before = {name: parameter.detach().clone() for name, parameter in tiny.added(model).items()}
    losses = tiny.train(model, family, steps=12)
    assert losses[-1] < losses[0]
    for name, parameter in tiny.added(model).items():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_base_trains_the_added_parameters_alone(family):
    model = patch_model(build(family), choices("sum", "gate", "head"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("relpos" in name)
    stock = build(family).state_dict()
    tiny.train(model, family, steps=3)
    for name, tensor in stock.items():
        assert torch.equal(model.state_dict()[name], tensor), name
    unpatch_model(model)
    batch = tiny.inputs(family)
    assert torch.equal(tiny.logits(model, batch), tiny.logits(build(family), batch))


def checkpoint_activations(model, arguments):
    """Transformers 5.24 gave the method another name."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)


@pairs(family=FAMILIES, native=NATIVE, apart=("family", "native"))
def test_checkpointing_of_activations_gives_the_same_gradients(family, native):
    gradients = []
    for reentrant in (None, True, False):
        model = patched(family, "sum", native, "token").train()
        if reentrant is not None:
            checkpoint_activations(model, {"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(**tiny.labelled(family), use_cache=False).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            assert other[name] is not None, name
            assert_close(other[name], gradient)


@pytest.mark.core
@pytest.mark.parametrize("engine", ["eager", "blockwise"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_dropout_acts_in_training_only_and_follows_the_seed(family, engine):
    names = {"gpt2": "attn_pdrop", "distilbert": "attention_dropout", "bart": "attention_dropout"}
    names |= dict.fromkeys(("bert", "bert-decoder", "roberta"), "attention_probs_dropout_prob")
    name = names.get(family, "dropout_rate")
    model = patched(family, "sum", "gate", "head", config={name: 0.5}, engine=engine)
    batch = tiny.inputs(family, padding=False)
    quiet = tiny.logits(model, batch)
    assert torch.equal(tiny.logits(model, batch), quiet)
    model.train()
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(tiny.logits(model, batch))
    assert torch.equal(made[0], made[1])
    assert tiny.differ(made[0], made[2]) > 1e-3
    assert tiny.differ(made[0], quiet) > 1e-3


# The Trainer


def dataset(family, rows=8, length=9):
    ids = tiny.tokens(rows, length)
    return datasets.Dataset.from_dict(
        {
            "input_ids": ids.tolist(),
            "attention_mask": torch.ones_like(ids).tolist(),
            "labels": ids.tolist(),
            "text": [f"document {row}" for row in range(rows)],
        }
    )


def trainer(model, family, folder, **arguments):
    defaults = {
        "per_device_train_batch_size": 2, "max_steps": 2, "logging_steps": 1, "learning_rate": 0.0, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "seed": 3, "disable_tqdm": True,
    }  # fmt: skip
    return Trainer(model, TrainingArguments(str(folder), **{**defaults, **arguments}), train_dataset=dataset(family))


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_trainer_sees_the_signature_of_the_stock_model(family, tmp_path):
    stock, model = build(family), patched(family)
    assert inspect.signature(type(model).forward) == inspect.signature(type(stock).forward)
    assert inspect.signature(model.forward) == inspect.signature(stock.forward)
    ours, theirs = trainer(model, family, tmp_path), trainer(stock, family, tmp_path)
    assert ours.model_accepts_loss_kwargs == theirs.model_accepts_loss_kwargs
    assert ours.label_names == theirs.label_names
    for one in (ours, theirs):
        one._set_signature_columns_if_needed()
    assert ours._signature_columns == theirs._signature_columns
    for attribute in ("main_input_name", "accepts_loss_kwargs", "loss_type"):
        assert getattr(model, attribute, "none") == getattr(stock, attribute, "none"), attribute


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_data_set_with_an_extra_text_column_trains(family, tmp_path):
    model = patch_model(build(family), choices("sum", "gate", "head"))
    before = {name: parameter.detach().clone() for name, parameter in tiny.added(model).items()}
    trainer(model, family, tmp_path, learning_rate=0.05, max_steps=3).train()
    for name, parameter in tiny.added(model).items():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.core
@pytest.mark.parametrize("family", [*KINDS, "bert-decoder"])
def test_gradient_accumulation_changes_the_loss_as_it_does_for_stock(family, tmp_path):
    logs = []
    for model in (build(family), patch_model(build(family), choices("sum", "keep", "head"))):
        for steps in (1, 4):
            one = trainer(model, family, tmp_path, gradient_accumulation_steps=steps, max_steps=1)
            one.train()
            logs.append([entry["loss"] for entry in one.state.log_history if "loss" in entry])
    for ours, theirs in zip(logs[2:], logs[:2], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("family", KINDS)
def test_checkpoint_of_the_trainer_loads_as_what_was_trained(family, tmp_path):
    model = patch_model(build(family), choices("sum", "gate", "head"))
    trainer(model, family, tmp_path, learning_rate=0.05, save_strategy="steps", save_steps=2).train()
    twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path / "checkpoint-2")
    for name, tensor in model.state_dict().items():
        assert torch.equal(twin.state_dict()[name], tensor), name


@pytest.mark.parametrize("family", KINDS)
def test_unpatched_after_the_trainer_is_the_stock_model_with_the_trained_weights(family, tmp_path):
    model = patch_model(build(family), choices("sum", "gate", "head"))
    trainer(model, family, tmp_path, learning_rate=0.05).train()
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items() if "relpos" not in name}
    unpatch_model(model)
    stock = build(family)
    assert list(model.state_dict()) == list(stock.state_dict())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in trained.items())


def test_optimizer_made_after_the_patch_has_every_parameter_once():
    for share_layers in (False, True):
        model = patch_model(build("t5"), RelPosConfig([Shaw(2), T5Bias(8, 6)], share_layers=share_layers))
        parameters = list(model.parameters())
        assert len({id(parameter) for parameter in parameters}) == len(parameters)
        torch.optim.AdamW(parameters)
