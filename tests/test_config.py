"""RelPosConfig: every wrong value is named with what is allowed, and JSON brings back what was written."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

import hf_relpos
from hf_relpos import ClippedBias, RelPosConfig, RelPosConfigError, Shaw, T5Bias
from hf_relpos.schemes import SCHEMES

CONFIGS = [
    RelPosConfig("shaw"),
    RelPosConfig(Shaw(max_distance=3, value=False, per_head=True, rank=2, init="trunc_normal", init_std=0.5)),
    RelPosConfig([T5Bias(num_buckets=8, max_distance=20), "clipped", Shaw(8)], native="drop", gate="token"),
    RelPosConfig(
        [ClippedBias()], native="keep", gate="none", window=7, layers=[2, 0], share_layers=True, engine="eager"
    ),
]


@pytest.mark.core
@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_json_brings_back_the_same_config(config: RelPosConfig):
    written = json.loads(json.dumps(config.to_dict()))
    assert RelPosConfig.from_dict(written) == config
    assert RelPosConfig.of(written) == config
    assert written["version"] == hf_relpos.__version__


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_prints_as_one_would_write_it(config: RelPosConfig):
    assert eval(str(config), vars(hf_relpos)) == config
    assert str(RelPosConfig(["t5", Shaw(8)], window=4)) == (
        "RelPosConfig([T5Bias(num_buckets=32, max_distance=128), Shaw(max_distance=8)], window=4)"
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_json_holds_every_choice(name: str):
    written = RelPosConfig(name).to_dict()
    assert set(written) == {field.name for field in dataclasses.fields(RelPosConfig)} | {"format", "version"}
    (entry,) = written["schemes"]
    assert entry["type"] == name
    assert set(entry) == {field.name for field in dataclasses.fields(SCHEMES[name])} | {"type"}


@pytest.mark.parametrize(
    "shorthand",
    ["shaw", Shaw(), ["shaw"], (Shaw(),), {"schemes": ["shaw"]}, {"schemes": [{"type": "shaw", "max_distance": 16}]}],
    ids=repr,
)
def test_every_shorthand_means_the_same(shorthand: Any):
    assert RelPosConfig.of(shorthand) == RelPosConfig(schemes=[Shaw(max_distance=16)])


def test_a_config_given_as_such_is_kept():
    config = RelPosConfig("t5", gate="none")
    assert RelPosConfig.of(config) is config


def test_the_default_choices_are_the_documented_ones():
    config = RelPosConfig("shaw")
    assert (config.native, config.gate, config.engine) == ("gate", "head", "auto")
    assert (config.window, config.layers, config.share_layers) == (None, None, False)


def test_layers_are_sorted_and_counted_once():
    assert RelPosConfig("shaw", layers=[3, 0, 3]).layers == (0, 3)


def test_a_config_cannot_be_changed_after_its_checks():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RelPosConfig("shaw").gate = "nonsense"  # type: ignore[misc]


@pytest.mark.core
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"schemes": []}, ("schemes", "[]", "at least one")),
        ({"schemes": ["fourier"]}, ("'fourier'", "'shaw'", "'t5'", "'clipped'")),
        ({"schemes": [3]}, ("schemes", "3", "'shaw'")),
        ({"native": "remove"}, ("native", "'remove'", "'keep'", "'gate'", "'drop'")),
        ({"gate": "channel"}, ("gate", "'channel'", "'none'", "'head'", "'token'")),
        ({"gate": None}, ("gate", "None", "'none'")),
        ({"engine": "warp"}, ("engine", "'warp'", "'auto'", "'eager'", "'blockwise'")),
        ({"window": 0}, ("window", "0", "at least 1")),
        ({"window": 2.5}, ("window", "2.5", "at least 1")),
        ({"window": True}, ("window", "True", "at least 1")),
        ({"layers": []}, ("layers", "[]", "counted from 0")),
        ({"layers": [-1]}, ("layers", "[-1]", "counted from 0")),
        ({"layers": ["0"]}, ("layers", "['0']", "counted from 0")),
        ({"share_layers": 1}, ("share_layers", "1", "True or False")),
    ],
    ids=lambda entry: repr(entry) if isinstance(entry, dict) else "",
)
def test_a_wrong_value_is_named_with_what_is_allowed(values: dict[str, Any], named: tuple[str, ...]):
    with pytest.raises(RelPosConfigError) as refusal:
        RelPosConfig(**{"schemes": "shaw", **values})
    for part in named:
        assert part in str(refusal.value)
    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize("nonsense", [3, None, {1, 2}, object], ids=repr)
def test_what_is_no_config_at_all_is_refused(nonsense: Any):
    with pytest.raises(RelPosConfigError, match="RelPosConfig, a scheme config, or a scheme's name"):
        RelPosConfig.of(nonsense)


@pytest.mark.core
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rotation": 3}, ("'rotation'", "'schemes'", "'window'")),
        ({"schemes": [{"type": "shaw", "radius": 3}]}, ("Shaw", "'radius'", "'max_distance'")),
        ({"schemes": [{"type": "spiral"}]}, ("'spiral'", "'shaw'")),
        ({"schemes": [{"max_distance": 3}]}, ("None", "'shaw'")),
    ],
)
def test_what_a_newer_version_wrote_is_refused_with_both_versions(change: dict[str, Any], named: tuple[str, ...]):
    written = {**RelPosConfig("shaw").to_dict(), **change, "version": "99.1"}
    with pytest.raises(RelPosConfigError) as refusal:
        RelPosConfig.from_dict(written)
    for part in (*named, "99.1", hf_relpos.__version__):
        assert part in str(refusal.value)


def test_the_checks_of_the_fields_leave_copies_and_pickles_alone():
    config = RelPosConfig([Shaw(3), T5Bias(8, 20)], native="drop")
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert dataclasses.replace(config, native="keep").native == "keep"


def test_an_unknown_field_of_this_version_does_not_blame_the_version():
    with pytest.raises(RelPosConfigError) as refusal:
        RelPosConfig.from_dict({**RelPosConfig("shaw").to_dict(), "rotation": 3})
    assert "written by" not in str(refusal.value)


def test_a_newer_version_that_wrote_nothing_new_is_read():
    config = RelPosConfig("shaw")
    assert RelPosConfig.from_dict({**config.to_dict(), "version": "99.1"}) == config


def test_reading_does_not_change_what_is_read():
    written = RelPosConfig([Shaw(), T5Bias()]).to_dict()
    before = json.loads(json.dumps(written))
    RelPosConfig.from_dict(written)
    assert json.loads(json.dumps(written)) == before
