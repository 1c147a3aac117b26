"""A conversion that was interrupted goes on as if nothing had been; one that is done elsewhere is not touched."""

from __future__ import annotations

import json

import pytest
import torch
from test_convert import converted
from tiny import build

from hf_relpos import ConversionError
from hf_relpos.conversion.trainer import ConversionTrainer

STEPS = {"steps": (3, 4), "training_arguments": {"save_strategy": "steps", "save_steps": 2}}


class Interrupted(Exception):
    pass


def interrupted(folder, monkeypatch, after, **settings):
    """A conversion that dies in its step number ``after``, counted over both stages."""
    done = [0]
    compute_loss = ConversionTrainer.compute_loss

    def dying(*args, **kwargs):
        done[0] += 1
        if done[0] > after:
            raise Interrupted
        return compute_loss(*args, **kwargs)

    monkeypatch.setattr(ConversionTrainer, "compute_loss", dying)
    with pytest.raises(Interrupted):
        converted(build("bert"), output_dir=folder, **STEPS, **settings)
    monkeypatch.setattr(ConversionTrainer, "compute_loss", compute_loss)


def same(first, second):
    return all(torch.equal(second.state_dict()[name], tensor) for name, tensor in first.state_dict().items())


@pytest.mark.core
@pytest.mark.parametrize("after", [2, 3, 6])  # within the first stage, between the two, within the second
def test_resumed_it_gives_the_same_bit_for_bit(after, tmp_path, monkeypatch):
    whole = converted(build("bert"), **STEPS)
    interrupted(tmp_path, monkeypatch, after)
    steps = []
    monkeypatch.setattr(ConversionTrainer, "_note_agreement", lambda *given: steps.append(1))
    resumed = converted(build("bert"), output_dir=tmp_path, resume=True, **STEPS)
    assert same(whole, resumed)
    assert whole.relpos_fidelity.rows == resumed.relpos_fidelity.rows
    assert len(steps) == {2: 5, 3: 4, 6: 2}[after]


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(tmp_path, monkeypatch):
    whole = converted(build("bert"), **STEPS)
    interrupted(tmp_path, monkeypatch, 6)
    for checkpoint, content in ((3, None), (4, "{")):
        folder = tmp_path / "all" / f"checkpoint-{checkpoint}"
        folder.mkdir()
        if content is not None:
            (folder / "trainer_state.json").write_text(content)
    assert same(whole, converted(build("bert"), output_dir=tmp_path, resume=True, **STEPS))


def test_a_stage_that_reached_its_target_does_not_go_on_when_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_relpos.conversion.stages.LOOK_EVERY", 1)
    whole = converted(build("bert"), target=0.1, **STEPS)
    assert (tmp_path / "tables").exists() is False
    interrupted(tmp_path, monkeypatch, 1, target=0.1)
    assert json.loads((tmp_path / "tables" / "checkpoint-1" / "trainer_state.json").read_text())["global_step"] == 1
    assert same(whole, converted(build("bert"), output_dir=tmp_path, resume=True, target=0.1, **STEPS))


@pytest.mark.core
def test_a_folder_of_another_conversion_is_refused_and_left_alone(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch, 2)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(ConversionError, match=r"a conversion was begun already\. Go on with it by resume=True"):
        converted(build("bert"), output_dir=tmp_path, **STEPS)
    with pytest.raises(ConversionError, match=r"other settings was begun: `seed` was 0 and is 1\. Give those"):
        converted(build("bert"), output_dir=tmp_path, resume=True, seed=1, **STEPS)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("output_dir", "match"),
    [(None, "there is no `output_dir`"), ("typo", "in `output_dir`, typo, none was begun")],
)
def test_to_resume_where_nothing_was_begun_is_refused(output_dir, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConversionError, match=f"`resume` is True, but .*: {match}"):
        converted(build("bert"), output_dir=output_dir, resume=True, **STEPS)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    converted(build("bert"), steps=(1, 1))
    assert not list(tmp_path.iterdir())
