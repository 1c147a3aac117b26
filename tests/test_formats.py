"""JSON of the choices: what earlier releases wrote is read, what a later one writes is refused with what to do."""

from __future__ import annotations

import pytest
from tiny import choices

from hf_relpos import RelPosConfig, RelPosConfigError, Shaw, formats
from hf_relpos.checkpoints.adapters import PATCH_ENTRY, check_adapter
from hf_relpos.names import FORMER_ENGINES


def test_json_says_its_format_and_json_without_one_is_that_of_the_first_release():
    config = choices("sum", "gate", "token", window=3)
    values = config.to_dict()
    assert values["format"] == formats.FORMAT
    assert RelPosConfig.from_dict(values) == config
    del values["format"]
    assert RelPosConfig.from_dict({**values, "version": "0.1.0"}) == config


@pytest.mark.parametrize("number", [0, -1, formats.FORMAT + 1, 1.0, True, "1", None])
def test_a_format_that_is_not_known_is_refused_with_what_can_read_it(number):
    values = {**RelPosConfig(Shaw(4)).to_dict(), "format": number, "version": "9.8.7"}
    with pytest.raises(
        RelPosConfigError, match=r"`format` is .*written by hf_relpos 9\.8\.7: read it with that version"
    ):
        RelPosConfig.from_dict(values)
    del values["version"]
    with pytest.raises(RelPosConfigError, match="of an unknown version"):
        RelPosConfig.from_dict(values)


def test_each_step_from_an_earlier_format_is_taken_once_and_in_order(monkeypatch):
    def renamed(values):
        values["engine"] = {"fast": "faster"}.get(values["engine"], values["engine"])
        return values

    def renamed_again(values):
        values["engine"] = {"faster": "blockwise"}.get(values["engine"], values["engine"])
        return values

    monkeypatch.setattr(formats, "FORMAT", 3)
    monkeypatch.setattr(formats, "STEPS", {1: renamed, 2: renamed_again})
    first = {"schemes": [{"type": "shaw"}], "engine": "fast", "version": "0.1.0"}
    assert RelPosConfig.from_dict(first).engine == "blockwise"
    assert first["engine"] == "fast"  # what was given is not changed
    assert RelPosConfig.from_dict({**first, "engine": "faster", "format": 2}).engine == "blockwise"
    with pytest.raises(RelPosConfigError, match="`engine` is 'faster'"):
        RelPosConfig.from_dict({**first, "engine": "faster", "format": 3})


@pytest.mark.parametrize("engine", FORMER_ENGINES)
def test_an_engine_of_the_first_release_that_is_gone_is_read_as_auto_and_the_log_says_so(engine, monkeypatch):
    said = []
    monkeypatch.setattr(formats.logger, "warning_once", said.append)
    first = {"schemes": ["shaw"], "engine": engine, "version": "0.1.0"}
    assert formats.migrate(first)["engine"] == RelPosConfig.from_dict(first).engine == "auto"
    assert RelPosConfig(Shaw(4), engine=engine) == RelPosConfig(Shaw(4))
    assert all(f"the engine {engine!r} of release 0.1.0 is gone; 'auto'" in line for line in said)
    assert said


def test_an_adapter_of_a_later_format_is_refused_too():
    from tiny import patched

    entry = PATCH_ENTRY + '{"schemes": ["shaw"], "format": 99, "version": "9.8.7"}'
    with pytest.raises(RelPosConfigError, match="`format` is 99"):
        check_adapter(patched("bert"), [entry])
