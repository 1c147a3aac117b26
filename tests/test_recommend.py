"""`recommend`: what rules come to, that each has its say and its source, and that what is proposed can be done."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path

import pytest
import tiny
from test_pipelines import tokenizer
from transformers import AutoModelForMaskedLM, ElectraConfig

from hf_relpos import (
    ClippedBias,
    PatchStateError,
    RelPosConfig,
    RelPosConfigError,
    Shaw,
    T5Bias,
    TextsError,
    UnsupportedModelError,
    is_patched,
    recommend,
)
from hf_relpos.advice.recommendation import decide
from hf_relpos.advice.rules import NO_GAIN, OURS, RULES
from hf_relpos.advice.situation import TASKS, Lengths, Situation
from hf_relpos.cli import main
from hf_relpos.cli import recommend as command
from hf_relpos.comparing.examples import Example, TextData
from hf_relpos.families import FAMILIES
from hf_relpos.schemes.spelling import parse, spell

KEYS_16 = Shaw(16, value=False)


def situation(family="bert", task="classification", most=100, reads=512, absolute=True, positions="some"):
    mostly = FAMILIES[family].mostly_trained_at if family in FAMILIES else None
    return Situation(family, positions, absolute, reads, mostly, task, Lengths(9, 1, most, 9999))


MODELS = [("bert", 512, True, "some"), ("roberta", 512, True, "some"), ("t5", None, False, "a bias")]
EVERY = [
    situation(family, task, most, reads, absolute, positions)
    for (family, reads, absolute, positions), task, most in itertools.product(
        [*MODELS, ("other", None, False, None)], TASKS, [20, 128, 129, 512, 513, 3000]
    )
]


@pytest.mark.core
@pytest.mark.parametrize(
    ("given", "do", "schemes", "native"),
    [
        ({}, "nothing", None, None),
        ({"most": 128}, "nothing", None, None),
        ({"most": 129}, "patch", [T5Bias(max_distance=128)], "gate"),
        ({"most": 512}, "patch", [T5Bias(max_distance=128)], "gate"),
        ({"most": 513}, "convert", [ClippedBias(128), Shaw(64, per_head=True)], "drop"),
        ({"most": 513, "reads": 1024}, "patch", [T5Bias(max_distance=256)], "gate"),
        ({"most": 1024, "reads": 1024}, "patch", [T5Bias(max_distance=256)], "gate"),
        ({"task": "embedding"}, "nothing", None, None),
        ({"task": "question-answering"}, "patch", [KEYS_16], "gate"),
        ({"task": "seq2seq", "family": "bart"}, "patch", [KEYS_16], "gate"),
        ({"task": "generation", "family": "gpt2"}, "patch", [T5Bias(max_distance=128)], "gate"),
        (
            {"task": "generation", "family": "gpt2", "most": 600},
            "convert",
            [ClippedBias(128), Shaw(64, per_head=True)],
            "drop",
        ),
        ({"family": "roberta", "most": 300}, "patch", [T5Bias(max_distance=128)], "gate"),
        ({"family": "t5", "absolute": False, "reads": None, "most": 3000}, "nothing", None, None),
        ({"absolute": False, "positions": None, "reads": None}, "patch", [KEYS_16], "keep"),
    ],
    ids=lambda value: "" if not isinstance(value, dict) else " ".join(map(str, value.values())) or "short",
)
def test_what_is_proposed(given, do, schemes, native):
    found = decide(situation(**given))
    assert found.do == do
    assert found.relpos == (None if schemes is None else RelPosConfig(schemes, native=native))
    assert found.reasons


def test_every_rule_decides_somewhere_and_none_is_said_without_deciding():
    said = {reason.words for one in EVERY for reason in decide(one).reasons}
    for number, rule in enumerate(RULES):
        known = [rule.because.format(**vars(one), short=128) for one in EVERY if rule.when(one)]
        assert said & set(known), f"rule {number} never decides"
    for rule in NO_GAIN:
        assert {rule.when(one) for one in EVERY} == {True, False}, rule.because
    quiet = decide(situation("t5", absolute=False, reads=None))
    assert len(quiet.reasons) == 1
    assert not quiet.no_gain


def test_rules_have_published_sources_or_say_that_nothing_is_published():
    for rule in (*RULES, *NO_GAIN):
        assert all("https://" in source or source == OURS for source in rule.sources)
        if not rule.sources:
            assert "nothing published" in rule.because or "pretrained positions" in rule.because


def test_what_was_published_without_a_gain_is_said():
    words = " ".join(reason.words for reason in decide(situation()).no_gain)
    assert "Absolute positions beside relative ones: no further gain" in words
    assert "25.8 BLEU with both and with key vectors alone" in words
    assert "cut texts off first" in " ".join(repr(decide(situation(most=600))).split())


def test_lengths_are_counted_as_one_would():
    lengths = [7, 1, 3, 100, *[5] * 96]
    found = Lengths.of(lengths)
    assert (found.texts, found.longest) == (100, 100)
    for share, value in ((0.5, found.median), (0.95, found.most)):
        assert value == min(n for n in lengths if sum(m <= n for m in lengths) >= share * len(lengths))
    assert Lengths.of([4]) == Lengths(1, 4, 4, 4)
    assert Lengths.of(range(1, 101)) == Lengths(100, 50, 95, 100)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_models_and_configs_of_every_family_are_known(family):
    texts = ["w1 " * 10, "w1", "w2"]
    model = tiny.build(family)
    found = recommend(model, "masked-lm", texts, tokenizer(), samples=2)
    assert found == recommend(model.config, "masked-lm", texts, tokenizer(), samples=2)
    assert found.situation.lengths == Lengths(2, 1, 10, 10)
    assert found.situation.absolute == (family in tiny.ABSOLUTE)
    assert found.situation.trained_length == (tiny.POSITIONS if family in tiny.ABSOLUTE else None)
    assert found.situation.mostly_trained_at == (128 if model.config.model_type == "bert" else None)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"task": "poetry"}, RelPosConfigError, "`task` is 'poetry', but must be one of 'classification'"),
        ({"texts": ["", " "]}, TextsError, "has no text in it"),
        (
            {"model": tiny.patched("bert").config},
            PatchStateError,
            "'relpos-bert', which has relative positions",
        ),
        ({"model": ElectraConfig()}, UnsupportedModelError, "of type 'electra'. Supported are .* Bert"),
    ],
    ids=["task", "texts", "patched", "family"],
)
def test_what_cannot_be_answered_is_refused(given, error, said):
    given = {"model": tiny.config_of("bert"), "task": "embedding", "texts": ["w1"], "tokenizer": tokenizer(), **given}
    with pytest.raises(error, match=said):
        recommend(**given)


@pytest.mark.parametrize("name", tiny.SCHEMES)
def test_a_scheme_as_an_option_is_read_as_the_same_scheme(name):
    config = RelPosConfig(tiny.SCHEMES[name])
    assert tuple(parse(spell(scheme)) for scheme in config.scheme_configs) == config.schemes
    assert spell(T5Bias()) == "t5:128"


def test_the_table_of_the_documents_is_what_the_rules_come_to():
    page = (Path(__file__).parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = {row[1].strip(): row[2:6] for row in (line.split("|") for line in page.splitlines()) if len(row) == 7}
    tasks = ("classification", "question-answering", "seq2seq", "generation")
    for cell, task in zip(rows["up to 128 tokens"], tasks, strict=True):
        found = decide(situation(task=task))
        proposed = "leave it" if found.relpos is None else f"`{spell(found.relpos.scheme_configs[0])}`"
        assert cell.strip() == proposed
    found = decide(situation(most=600))
    schemes = " ".join(map(spell, found.relpos.scheme_configs))
    assert rows["longer than the model reads"][0].strip() == f"{found.do}: `{schemes}`"


# The command


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.build("bert").save_pretrained("stock")
    tokenizer().save_pretrained("stock")
    (tmp_path / "short.txt").write_text("w1 w2", encoding="utf-8")
    (tmp_path / "long.txt").write_text(" ".join(["w1"] * 40), encoding="utf-8")
    return tmp_path


def test_the_command_that_is_proposed_does_what_is_proposed(given, capsys):
    assert main(["recommend", "stock", "--task", "question-answering", "--texts", "short.txt"]) == 0
    said = capsys.readouterr().out
    assert str(recommend(tiny.config_of("bert"), "question-answering", ["w1 w2"], tokenizer())) in said
    assert main(shlex.split(said.splitlines()[-1])[1:]) == 0
    made = AutoModelForMaskedLM.from_pretrained("relative")
    assert is_patched(made)
    assert RelPosConfig.of(made.config.relpos) == RelPosConfig(KEYS_16)
    assert main(["recommend", "stock", "--task", "masked-lm", "--texts", "long.txt"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.strip() == (
        "hf-relpos convert stock --output-dir relative --scheme clipped:128 shaw:64,per_head=true --texts long.txt"
    )


def test_without_a_model_and_texts_it_takes_those_of_the_demo_extra(given, monkeypatch, capsys):
    monkeypatch.setattr(command, "embedded_model_folder", lambda: given / "stock")
    monkeypatch.setattr(command, "load_bbc_news", lambda: TextData("", [], [Example("w1 w2 w3", 0)], []))
    assert main(["recommend", "--task", "seq2seq"]) == 0
    said = capsys.readouterr().out
    assert "the longest 3" in said
    assert said.splitlines()[-1].split()[:3] == ["hf-relpos", "patch", "--output-dir"]


def test_json_is_all_that_is_printed(given, capsys):
    assert main(["recommend", "stock", "--task", "embedding", "--texts", "short.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["do"], found["relpos"]) == ("nothing", None)
    assert found["situation"]["lengths"]["longest"] == 2
    assert found["reasons"][0]["sources"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("stock --task poetry --texts short.txt", "--task is 'poetry'"),
        ("nothing --task embedding --texts short.txt", "MODEL nothing cannot be loaded"),
        ("stock --task embedding --texts nowhere.csv", "--texts nowhere.csv does not exist"),
    ],
    ids=["task", "model", "texts"],
)
def test_what_is_wrong_is_told_in_a_line(options, said, given, capsys):
    assert main(["recommend", *options.split()]) == 2
    assert said in capsys.readouterr().err
