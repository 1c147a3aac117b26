"""Case 19: training goes on exactly where it stopped, and not at all from another patch's checkpoint."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
from tiny import KINDS, build, choices, fill, patched
from transformers import Trainer, TrainingArguments

from hf_relpos import PatchStateError, RelPosConfig, Shaw, T5Bias, patch_model
from hf_relpos.checkpoints.resuming import check_checkpoint
from hf_relpos.modeling.state import check_state
from hf_relpos.training import RelPosTrainerMixin


class Mine(RelPosTrainerMixin, Trainer):
    """The Trainer of this package."""


def trainer(model, family, folder, cls=Trainer, **more):
    ids = tiny.tokens(16, 9)
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=4, save_steps=2, learning_rate=0.01, use_cpu=True,
        report_to=[], seed=3, disable_tqdm=True, **more,
    )  # fmt: skip
    return cls(model, arguments, train_dataset=rows)


def fresh(family="bert", relpos=None):
    model = build(family)
    return model if relpos is None else patch_model(model, relpos)


def checkpoint(folder, family="bert", relpos=None, **more):
    """Of two steps, with the relative positions given."""
    trainer(fresh(family, relpos), family, folder, **more).train()
    return folder / "checkpoint-2"


@pytest.mark.core
@pytest.mark.parametrize("cls", [Trainer, Mine])
@pytest.mark.parametrize("family", KINDS)
def test_four_steps_equal_two_and_two_after_resuming(family, cls, tmp_path):
    straight = fresh(family, choices("sum", "gate", "token"))
    trainer(straight, family, tmp_path, cls).train()
    resumed = fresh(family, choices("sum", "gate", "token"))
    trainer(resumed, family, tmp_path / "again", cls).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, tensor in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name


STORED = RelPosConfig([Shaw(3), T5Bias(8, 6)], window=5)
OTHERS = {
    "unpatched": None,
    "fewer schemes": RelPosConfig(Shaw(3), window=5),
    "another gate": RelPosConfig([Shaw(3), T5Bias(8, 6)], window=5, gate="token"),
    "other layers": RelPosConfig([Shaw(3), T5Bias(8, 6)], window=5, layers=[0]),
    "shared": RelPosConfig([Shaw(3), T5Bias(8, 6)], window=5, share_layers=True),
    "another native": RelPosConfig([Shaw(3), T5Bias(8, 6)], window=5, native="keep"),
    # These have the same tensors in the same shapes: only the config tells.
    "another window": RelPosConfig([Shaw(3), T5Bias(8, 6)], window=4),
    "other buckets": RelPosConfig([Shaw(3), T5Bias(8, 7)], window=5),
}


@pytest.mark.core
@pytest.mark.parametrize("other", OTHERS)
def test_resuming_into_another_patch_is_refused_before_training_naming_both(other, tmp_path):
    stored = checkpoint(tmp_path, relpos=STORED, save_only_model=True)
    model = fresh("bert", OTHERS[other])
    before = copy.deepcopy(model.state_dict())
    one = trainer(model, "bert", tmp_path / "again", Mine if OTHERS[other] else CheckedTrainer)
    with pytest.raises(PatchStateError) as raised:
        one.train(resume_from_checkpoint=str(stored))
    theirs = "no relative positions" if OTHERS[other] is None else str(OTHERS[other])
    assert f"was made with {STORED}, but" in str(raised.value)
    assert f"to be loaded into has {theirs}." in str(raised.value)
    for name, tensor in before.items():
        assert torch.equal(model.state_dict()[name], tensor), name


class CheckedTrainer(Trainer):
    """For a model that is not patched: the mixin, which makes groups for what a patch adds, has no use for it."""

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        check_checkpoint(model or self.model, resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)


def test_resuming_a_plain_checkpoint_into_a_patched_model_is_refused_too(tmp_path):
    stored = checkpoint(tmp_path, save_only_model=True)
    with pytest.raises(PatchStateError, match="was made with no relative positions, but the RelPosBertForMaskedLM"):
        trainer(fresh("bert", "shaw"), "bert", tmp_path / "again", Mine).train(resume_from_checkpoint=str(stored))


def test_another_engine_may_go_on(tmp_path):
    stored = checkpoint(tmp_path, relpos=RelPosConfig(Shaw(3)), save_only_model=True)
    model = fresh("bert", RelPosConfig(Shaw(3), engine="blockwise"))
    check_checkpoint(model, stored)
    check_checkpoint(torch.nn.parallel.DataParallel(model), stored)
    trainer(model, "bert", tmp_path / "again", Mine).train(resume_from_checkpoint=str(stored))


# A Trainer that knows nothing of us: what the weights alone can tell.


@pytest.mark.core
@pytest.mark.parametrize("other", ["fewer schemes", "other layers", "shared", "another native"])
def test_loading_weights_that_have_no_place_is_refused_by_any_trainer_before_a_weight_changes(other, tmp_path):
    stored = checkpoint(tmp_path, relpos=STORED, save_only_model=True)
    model = fresh("bert", OTHERS[other])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PatchStateError, match="saved with other relative positions than RelPosBertForMaskedLM has"):
        trainer(model, "bert", tmp_path / "again").train(resume_from_checkpoint=str(stored))
    for name, tensor in before.items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("family", KINDS)
def test_weights_that_fit_load_into_the_model_and_into_what_wraps_it(family, tmp_path):
    state = patched(family, "sum", "gate", "token").state_dict()
    model = fill(patch_model(build(family), choices("sum", "gate", "token")), seed=9)
    model.load_state_dict(state)
    wrapped = torch.nn.ModuleDict({"inner": fill(model, seed=9)})
    wrapped.load_state_dict({f"inner.{name}": tensor for name, tensor in state.items()})
    for name, tensor in state.items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_plain_weights_load_into_a_patched_model_when_that_is_asked_for():
    model = patched("bert")
    lacking = model.load_state_dict(build("bert").state_dict(), strict=False).missing_keys
    assert set(lacking) == set(tiny.added(model))


def test_names_that_wrappers_change_are_recognised():
    model = patched("bert", "shaw")
    keys = [f"model._fsdp_wrapped_module.{name}" for name in model.state_dict()]
    check_state(model, keys, "model.")
    with pytest.raises(PatchStateError, match=r"they have 'bert\.relpos\.gate\.weight', for which RelPosConfig\("):
        check_state(model, ["model.bert.relpos.gate.weight"], "model.")


def test_names_that_the_first_fsdp_hides_are_let_through():
    """It shows one parameter for many, by a name of its own, until it has loaded."""
    model = patched("bert", "shaw")
    model.bert._flat_param = torch.nn.Parameter(torch.zeros(3))
    check_state(model, ["bert.relpos.gate.weight"])
