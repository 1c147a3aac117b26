"""Parameter groups, logging of tables and gates, and annealing of the native positions, under the real Trainer."""

from __future__ import annotations

import functools
import json
import logging
import types

import pytest
import tiny
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tiny import FAMILIES, KINDS, build, choices, inputs, logits, patched
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_relpos import (
    AnnealNativeGateCallback,
    PatchStateError,
    RelPosConfig,
    RelPosLoggingCallback,
    RelPosTrainerMixin,
    Shaw,
    UnsupportedModelError,
    patch_model,
    patch_report,
    peft_modules_to_save,
    relpos_param_groups,
    unpatch_model,
)
from hf_relpos.training import drop_native_positions, relpos_measures


class RelPosTrainer(RelPosTrainerMixin, Trainer):
    pass


class Rows(torch.utils.data.Dataset):
    def __init__(self, family, rows=8):
        self.batch = tiny.inputs(family, 9, padding=False)
        self.ids = tiny.tokens(rows, 9)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def arguments(folder, **more):
    defaults = {
        "per_device_train_batch_size": 2, "max_steps": 4, "logging_steps": 1, "learning_rate": 0.01, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "seed": 3, "disable_tqdm": True, "lr_scheduler_type": "constant",
    }  # fmt: skip
    return TrainingArguments(str(folder), **{**defaults, **more})


def trainer(model, family, folder, cls=Trainer, callbacks=(), mixin=None, **more):
    return cls(model, arguments(folder, **more), train_dataset=Rows(family), callbacks=list(callbacks), **(mixin or {}))


# Parameter groups


@pytest.mark.core
@tiny.few()
def test_every_trainable_parameter_is_in_one_group_and_in_the_right_one(family, scheme, native, gate):
    model = patched(family, scheme, native, gate)
    groups = relpos_param_groups(model, lr=1e-4, weight_decay=0.1, relpos_lr=1e-2, relpos_weight_decay=0.3)
    settings = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(settings) == len(list(model.parameters()))
    decayed = Trainer.get_decay_parameter_names(None, build(family))
    for name, parameter in model.named_parameters():
        if "relpos" in name:
            expected = 1e-2, 0.0 if "gate" in name else 0.3
        else:
            expected = 1e-4, 0.1 if name in decayed else 0.0
        assert settings[id(parameter)] == expected, name
    assert all(group["params"] for group in groups)


def test_added_parameters_learn_twenty_times_as_fast_by_default():
    groups = relpos_param_groups(patched("bert"), lr=1e-4)
    assert [group["lr"] for group in groups] == pytest.approx([1e-4, 1e-4, 2e-3, 2e-3])
    assert [group["weight_decay"] for group in groups] == [0, 0, 0, 0]


def test_groups_of_an_adapted_model_hold_what_it_trains():
    model = patched("bert", "sum", gate="token")
    model = get_peft_model(model, LoraConfig(modules_to_save=peft_modules_to_save(model)))
    groups = relpos_param_groups(model, lr=1e-4)
    members = {id(parameter) for group in groups for parameter in group["params"]}
    assert members == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert [group["lr"] for group in groups] == pytest.approx([1e-4, 2e-3, 2e-3])


def test_nothing_to_learn_is_an_error_that_says_why():
    with pytest.raises(PatchStateError, match="BertForMaskedLM is not patched: it has no added parameters"):
        relpos_param_groups(build("bert"), lr=1e-4)
    frozen = get_peft_model(patched("bert"), LoraConfig())
    with pytest.raises(PatchStateError, match=r"are frozen. With PEFT, .* modules_to_save=peft_modules_to_save"):
        relpos_param_groups(frozen, lr=1e-4)


@pytest.mark.parametrize("name", ["lr", "weight_decay", "relpos_lr", "relpos_weight_decay"])
@pytest.mark.parametrize("value", [-1e-3, float("inf"), float("nan"), "1e-3", True])
def test_wrong_rates_are_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value!r}, but must be a finite number"):
        relpos_param_groups(patched("bert"), **{"lr": 1e-4, "relpos_lr": 1e-3, name: value})


@pytest.mark.core
@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "sgd"])
def test_mixin_uses_the_groups_and_the_trainers_optimizer_and_schedule(optim, tmp_path):
    one = trainer(
        patched("bert"), "bert", tmp_path, RelPosTrainer, mixin={"relpos_lr": 0.04, "relpos_weight_decay": 0.2},
        optim=optim, weight_decay=0.1, lr_scheduler_type="linear",
    )  # fmt: skip
    stock = trainer(build("bert"), "bert", tmp_path, optim=optim)
    stock.create_optimizer()
    one.create_optimizer_and_scheduler(4)
    assert type(one.optimizer).__name__ == type(stock.optimizer).__name__
    seen = [(group["initial_lr"], group["weight_decay"]) for group in one.optimizer.param_groups]
    assert seen == [(0.01, 0.1), (0.01, 0.0), (0.04, 0.2), (0.04, 0.0)]
    one.optimizer = None
    one.train()
    assert [group["lr"] for group in one.optimizer.param_groups] == [0, 0, 0, 0]  # the end of a linear schedule
    assert one.optimizer_cls_and_kwargs is None


def test_mixin_steps_as_an_optimizer_made_from_the_groups(tmp_path):
    ours, theirs = patched("gpt2", "sum"), patched("gpt2", "sum")
    trainer(ours, "gpt2", tmp_path, RelPosTrainer, weight_decay=0.1, optim="adamw_torch").train()
    groups = relpos_param_groups(theirs, lr=0.01, weight_decay=0.1)
    Trainer(
        theirs, arguments(tmp_path), train_dataset=Rows("gpt2"), optimizers=(torch.optim.AdamW(groups), None)
    ).train()
    for name, parameter in ours.named_parameters():
        tiny.assert_close(parameter, dict(theirs.named_parameters())[name])


def test_mixin_takes_an_optimizer_class(tmp_path):
    one = RelPosTrainer(
        patched("bert"), arguments(tmp_path), train_dataset=Rows("bert"),
        optimizer_cls_and_kwargs=(torch.optim.Adam, {"betas": (0.5, 0.9)}),
    )  # fmt: skip
    one.create_optimizer()
    assert type(one.optimizer) is torch.optim.Adam
    assert [group["betas"] for group in one.optimizer.param_groups] == [(0.5, 0.9)] * 4
    assert [group["lr"] for group in one.optimizer.param_groups] == pytest.approx([0.01, 0.01, 0.2, 0.2])


def test_mixin_refuses_a_second_say_on_the_groups(tmp_path):
    model = patched("bert")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="RelPosTrainer makes the optimizer itself, but was given one"):
        RelPosTrainer(model, arguments(tmp_path), optimizers=(optimizer, None))
    one = RelPosTrainer(
        model, arguments(tmp_path), optimizer_cls_and_kwargs=(torch.optim.SGD, {"params": list(model.parameters())})
    )
    with pytest.raises(ValueError, match="makes its parameter groups itself"):
        one.create_optimizer()


class Around(nn.Module):
    """A user's model around a patched one, under a name of the user's choice."""

    def __init__(self, name, inner):
        super().__init__()
        self.add_module(name, inner)


@pytest.mark.parametrize("name", ["bert_relpos", "relpos", "relpos_gate"])
def test_a_model_that_the_user_calls_like_ours_is_no_table(name, tmp_path):
    inner = patched("bert", "sum", gate="token")
    model = Around(name, inner)
    alone = relpos_param_groups(inner, lr=1e-4, weight_decay=0.1)
    inside = relpos_param_groups(model, lr=1e-4, weight_decay=0.1)
    one = trainer(model, "bert", tmp_path, RelPosTrainer, weight_decay=0.1, learning_rate=1e-4)
    groups = one.create_optimizer().param_groups
    for expected, found, ours in zip(alone, inside, groups, strict=True):
        assert (
            [id(p) for p in found["params"]] == [id(p) for p in ours["params"]] == [id(p) for p in expected["params"]]
        )
        assert (found["lr"], found["weight_decay"]) == (expected["lr"], expected["weight_decay"])
        assert (ours["lr"], ours["weight_decay"]) == (expected["lr"], expected["weight_decay"])
    assert relpos_measures(model) == {
        key.replace("relpos/", f"relpos/{name}.", 1): value for key, value in relpos_measures(inner).items()
    }


def test_a_layer_that_the_user_calls_like_ours_is_not_counted_as_added():
    model = patched("bert")
    added = patch_report(model).added
    model.relpos_head = nn.Linear(2, 2)
    assert patch_report(model).added == added


# Logging


class Reporter(TrainerCallback):
    """Stands for what `report_to` brings in: told of logs before any callback of the user."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append((state.global_step, dict(logs)))


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_measures_are_what_the_parameters_hold(family):
    model = patched(family, "sum", "gate", "head")
    measures = relpos_measures(model)
    for name, parameter in tiny.added(model).items():
        if "relpos_gate" in name:
            expected = {f"relpos/{name}": parameter.item()}
        elif ".gate." in name:
            expected = {f"relpos/{name}_{kind}": getattr(parameter, kind)().item() for kind in ("mean", "min", "max")}
        else:
            expected = {f"relpos/{name}_norm": parameter.square().sum().sqrt().item()}
        for key, value in expected.items():
            assert measures.pop(key) == pytest.approx(value)
    assert not measures
    adapted = get_peft_model(model, LoraConfig(modules_to_save=peft_modules_to_save(model)))
    assert relpos_measures(adapted) == relpos_measures(patched(family, "sum", "gate", "head"))
    tiny.fill(adapted, 7)
    trained = {name: value for name, value in adapted.named_parameters() if ".modules_to_save." in name}
    assert relpos_measures(adapted) == relpos_measures(adapted.merge_and_unload())
    assert trained


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_logging_reaches_reporters_and_history_at_the_trainers_own_pace(strategy, tmp_path):
    model, reporter = patched("bert"), Reporter()
    one = trainer(model, "bert", tmp_path, callbacks=[reporter], logging_strategy=strategy, logging_steps=2)
    one.add_callback(RelPosLoggingCallback(one))
    one.train()
    key = "relpos/bert.embeddings.position_embeddings.relpos_gate.weight"
    steps = [2, 4] if strategy == "steps" else [4]
    assert [step for step, logs in reporter.seen if key in logs] == steps
    assert [entry["step"] for entry in one.state.log_history if key in entry] == steps
    assert reporter.seen[-1][1]["train_loss"]
    last = [logs for _, logs in reporter.seen if key in logs][-1]
    assert relpos_measures(model).items() <= last.items()


def test_logs_go_to_the_integration_that_report_to_names(tmp_path, monkeypatch):
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    made = []

    class Recorder(Reporter):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "tensorboard", Recorder)
    one = trainer(patched("t5"), "t5", tmp_path, report_to=["tensorboard"], max_steps=1)
    one.add_callback(RelPosLoggingCallback(one))
    one.train()
    assert len(made) == 1
    assert relpos_measures(one.model).items() <= {k: v for _, logs in made[0].seen for k, v in logs.items()}.items()


# Annealing


class Watch(TrainerCallback):
    """The gates in each forward pass, and whether the model still learns them."""

    def __init__(self):
        self.gates = []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        gates = [parameter for name, parameter in model.named_parameters() if "relpos_gate" in name]
        assert not any(gate.requires_grad for gate in gates)
        self.gates.append([gate.item() for gate in gates])


def annealed(family, folder, model=None, watch=None, anneal=None, **more):
    model = patched(family) if model is None else model
    one = trainer(model, family, folder, callbacks=[watch or Watch(), anneal or AnnealNativeGateCallback()], **more)
    return model, one


@pytest.mark.core
@pytest.mark.parametrize("family", [*KINDS, "bart"])
def test_training_ends_purely_relative_and_reloads_exactly(family, tmp_path):
    watch = Watch()
    model, one = annealed(family, tmp_path, watch=watch, max_steps=10)
    opened = [value.item() for name, value in model.named_parameters() if "relpos_gate" in name]
    assert opened
    one.train()
    for step, gates in enumerate(watch.gates):
        assert gates == pytest.approx([value * max(0, 1 - step / 8) for value in opened], abs=1e-7)
    assert watch.gates[-1] == watch.gates[-2] == [0.0] * len(opened)
    reference = patched(family, native="drop")
    assert list(model.state_dict()) == list(reference.state_dict())
    assert [type(module) for module in model.modules()] == [type(module) for module in reference.modules()]
    assert patch_report(model).config == choices("shaw", "drop")
    one.save_model(tmp_path / "final")
    assert json.loads((tmp_path / "final" / "config.json").read_text())["relpos"]["native"] == "drop"
    loaded, info = type(model).from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    # Not bit for bit: only one of the two makes a cache, and keys that lie otherwise in memory may round otherwise.
    tiny.assert_close(logits(loaded.eval(), inputs(family)), logits(model.eval(), inputs(family)), atol=1e-5)
    if family in tiny.ABSOLUTE:
        assert torch.isfinite(logits(loaded, inputs(family, length=tiny.POSITIONS + 5))).all()


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_dropping_a_shut_gate_changes_nothing(family):
    model = patched(family, "sum")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relpos_gate" in name:
                parameter.zero_()
    batch = inputs(family)
    before = logits(model, batch)
    reference = patched(family, "sum", "drop")
    reference.load_state_dict({name: model.state_dict()[name] for name in reference.state_dict()})
    drop_native_positions(model)
    tiny.assert_close(logits(model, batch), before)
    assert torch.equal(logits(model, batch), logits(reference, batch))
    drop_native_positions(model)
    tiny.assert_close(logits(model, batch), before)
    unpatch_model(model)
    stock = build(family)
    assert list(model.state_dict()) == list(stock.state_dict())
    assert torch.equal(logits(tiny.mended(model), batch), logits(stock, batch))


def test_dropping_leaves_a_model_with_the_same_config_object_alone():
    first = patched("t5")
    second = tiny.fill(type(first)(first.config)).eval()
    before = logits(second, inputs("t5"))
    drop_native_positions(first)
    assert second.config.relpos["native"] == "gate"
    assert torch.equal(logits(second, inputs("t5")), before)


@pytest.mark.core
@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_resumed_in_the_middle_is_straight_through(family, restore, tmp_path):
    """Also for a gate that was not at 1: how far it was open at the start is in the checkpoint."""
    more = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}
    straight, one = annealed(family, tmp_path / "a", **more)
    one.train()
    checkpoint = tmp_path / "a" / "checkpoint-2"
    assert json.loads((checkpoint / "config.json").read_text())["relpos"]["native"] == "gate"
    watch = Watch()
    # Loaded from the checkpoint, so the gates are no longer what they were when training began.
    model = type(straight).from_pretrained(checkpoint)
    resumed, two = annealed(
        family, tmp_path / "b", model, watch, restore_callback_states_from_checkpoint=restore, **more
    )
    two.train(resume_from_checkpoint=str(checkpoint))
    assert len(watch.gates) == 4
    # Up to rounding: some matrix products of these sizes depend on where in memory the weights lie.
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=1e-5)


def test_optimizer_and_checkpoints_agree_to_the_end(tmp_path):
    model, one = annealed("bert", tmp_path, max_steps=5, save_strategy="steps", save_steps=5, optim="adamw_torch")
    table = model.bert.embeddings.position_embeddings.weight
    one.train()
    owned = {id(parameter) for group in one.optimizer.param_groups for parameter in group["params"]}
    assert {id(parameter) for parameter in model.parameters()} <= owned
    before = table.detach().clone()
    model(**tiny.labelled("bert")).loss.backward()
    one.optimizer.step()
    assert torch.equal(table, before)  # it is out of the model, and no longer learned
    # The last checkpoint was written before: the gate in it is shut.
    last = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "checkpoint-5")
    assert last.config.relpos["native"] == "gate"
    assert last.bert.embeddings.position_embeddings.relpos_gate.weight.item() == 0


def test_nothing_is_dropped_that_still_acts(tmp_path, caplog):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    model, one = annealed("bert", tmp_path, max_steps=8)
    one.add_callback(Stop())
    transformers.utils.logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            one.train()
    finally:
        transformers.utils.logging.disable_propagation()
    assert "Training stopped at step 2 of 8, before the gate on the native positions was shut" in caplog.text
    assert model.config.relpos["native"] == "gate"
    assert logits(model, inputs("bert")).isfinite().all()


def test_training_again_after_the_end_goes_on_purely_relative(tmp_path):
    model, one = annealed("gpt2", tmp_path, max_steps=3)
    one.train()
    one.train()
    assert model.config.relpos["native"] == "drop"


def test_mixin_and_annealing_and_logging_go_together(tmp_path):
    model, reporter = patched("bert"), Reporter()
    one = trainer(
        model, "bert", tmp_path, RelPosTrainer, callbacks=[reporter, AnnealNativeGateCallback(0.25, 1.0, "cosine")]
    )
    one.add_callback(RelPosLoggingCallback(one))
    one.train()
    key = "relpos/bert.embeddings.position_embeddings.relpos_gate.weight"
    gate = patched("bert").bert.embeddings.position_embeddings.relpos_gate.weight.item()
    logged = [logs[key] for _, logs in reporter.seen if key in logs]
    assert logged == pytest.approx([gate, gate * 0.75, gate * 0.25, 0], abs=1e-6)
    assert model.config.relpos["native"] == "drop"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [1, 1, 0.75, 0.5, 0.25, 0, 0]), ("cosine", [1, 1, 0.853553, 0.5, 0.146447, 0, 0])],
)
def test_schedules(schedule, expected):
    callback = AnnealNativeGateCallback(0.1, 0.5, schedule)
    assert [callback.factor(step, 10) for step in range(7)] == pytest.approx(expected, abs=1e-6)
    assert callback.factor(0, 0) == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 0.9, "end": 0.5}, "`start` is 0.9 and `end` is 0.5"),
        ({"end": 1.5}, "`end` is 1.5"),
        ({"start": -0.1}, "`start` is -0.1"),
        ({"start": "0.1"}, "`start` is '0.1'"),
        ({"schedule": "sine"}, "`schedule` is 'sine', but must be one of 'linear', 'cosine'"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        AnnealNativeGateCallback(**wrong)


def test_models_without_a_native_gate_are_refused(tmp_path):
    for model, why in (
        (build("bert"), "BertForMaskedLM is not patched. Call patch_model first"),
        (patched("bert", native="keep"), "RelPosBertForMaskedLM has native='keep'"),
        (patched("bert", native="drop"), "RelPosBertForMaskedLM has native='drop'"),
        (get_peft_model(patched("bert"), LoraConfig()), "PeftModel only contains one. Merge an adapter"),
    ):
        with pytest.raises(PatchStateError, match='needs a model patched with native="gate", but ' + why):
            annealed("bert", tmp_path, model)
    with pytest.raises(PatchStateError, match="Linear is not patched"):
        drop_native_positions(nn.Linear(2, 2))


def test_the_best_model_may_not_take_the_place_of_the_last(tmp_path):
    with pytest.raises(ValueError, match="cannot go with load_best_model_at_end=True"):
        Trainer(
            patched("bert"),
            arguments(tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps"),
            train_dataset=Rows("bert"), eval_dataset=Rows("bert"), callbacks=[AnnealNativeGateCallback()],
        )  # fmt: skip


def test_a_callback_that_comes_too_late_is_refused(tmp_path):
    one = trainer(patched("bert"), "bert", tmp_path)
    one.add_callback(AnnealNativeGateCallback())
    with pytest.raises(ValueError, match=r"came too late: .* callbacks=\[...\]"):
        one.train()


def test_a_model_inside_a_wrapper_of_the_trainers_is_refused_before_the_first_step(tmp_path):
    """With the first FSDP, callbacks are given the wrapper: the model could not be turned when training is over."""
    model, callback = patched("bert"), AnnealNativeGateCallback()
    one = annealed("bert", tmp_path, model, anneal=callback)[1]
    with pytest.raises(PatchStateError, match=r"out of a Sequential, the wrapper .* Train with DDP or FSDP2"):
        callback.on_train_begin(one.args, one.state, one.control, model=nn.Sequential(model))


def test_gate_of_a_bfloat16_model_follows_the_schedule(tmp_path):
    watch = Watch()
    model = patch_model(build("bert", dtype=torch.bfloat16), RelPosConfig(Shaw(3)))
    annealed("bert", tmp_path, model, watch, max_steps=10)[1].train()
    assert [gates[0] for gates in watch.gates] == pytest.approx([max(0, 1 - step / 8) for step in range(10)])
    assert model.config.relpos["native"] == "drop"


# Mixed precision


def bf16_trained(model, family, folder, times=1):
    """A model as the Trainer leaves it after training under autocast: accelerate's forward is still on it."""
    for _ in range(times):
        trainer(model, family, folder, bf16=True, max_steps=1).train()
    assert "forward" in vars(model)
    return model.eval()


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_a_model_trained_in_mixed_precision_is_unpatched(family, tmp_path, caplog):
    model = bf16_trained(patched(family, "sum"), family, tmp_path, times=2)
    stock = build(family)
    transformers.utils.logging.enable_propagation()
    transformers.utils.logging.get_logger("hf_relpos").warning_once.__func__.cache_clear()
    try:
        unpatch_model(model)
    finally:
        transformers.utils.logging.disable_propagation()
    assert "accelerate (which the Trainer uses) had put mixed precision" in caplog.text
    assert type(model) is type(stock)
    assert not {"forward", "_original_forward"} & vars(model).keys()
    stock.load_state_dict(model.state_dict())
    batch = inputs(family)
    assert torch.equal(logits(tiny.mended(model), batch), logits(tiny.mended(stock), batch))
    bf16_trained(model, family, tmp_path)  # not taken for a model that has its mixed precision already


@pytest.mark.core
@pytest.mark.parametrize("family", KINDS)
def test_a_baseline_trained_in_mixed_precision_is_patched(family, tmp_path):
    model = bf16_trained(build(family), family, tmp_path)
    stock = build(family)
    stock.load_state_dict(model.state_dict())
    patch_model(model, choices("sum"))
    batch = inputs(family)
    tiny.assert_close(logits(model, batch), logits(stock, batch))
    assert tiny.differ(logits(tiny.fill(model), batch), logits(stock, batch)) > 1e-3
    bf16_trained(model, family, tmp_path)


def test_what_is_left_of_mixed_precision_after_unwrapping_is_taken_off_too(tmp_path):
    one = trainer(patched("bert"), "bert", tmp_path, bf16=True, max_steps=1)
    one.train()
    model = one.accelerator.unwrap_model(one.model, keep_fp32_wrapper=False)
    assert "forward" in vars(model)
    assert "_original_forward" not in vars(model)
    assert "forward" not in vars(unpatch_model(model))


@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
def test_a_users_own_forward_stays_refused_beside_mixed_precision(around, tmp_path):
    model = patched("bert")

    def replace_forward():
        given = model.forward.__func__

        @functools.wraps(given)
        def own(self, *args, **kwargs):
            return given(self, *args, **kwargs)

        model.forward = types.MethodType(own, model)

    if not around:
        replace_forward()
    bf16_trained(model, "bert", tmp_path)
    if around:
        replace_forward()
    before = dict(vars(model))
    with pytest.raises(UnsupportedModelError, match=r"save it with save_pretrained, .*`del model.forward`"):
        unpatch_model(model)
    assert vars(model).keys() == before.keys()


def test_a_wrong_choice_leaves_mixed_precision_on(tmp_path):
    model = bf16_trained(build("bert"), "bert", tmp_path)
    forward = vars(model)["forward"]
    with pytest.raises(ValueError, match="layers"):
        patch_model(model, RelPosConfig(Shaw(3), layers=[7]))
    assert vars(model)["forward"] is forward
