"""The parts of a conversion: what is read, in which windows, and how far two readings are apart."""

from __future__ import annotations

import copy
import dataclasses

import datasets
import pytest
import tiny
import torch
from test_convert import converted
from test_pipelines import tokenizer
from tiny import build

from hf_relpos import TextsError, patch_model
from hf_relpos.conversion import Matching
from hf_relpos.conversion.batches import Frame, Steps, beginnings, tokens_in_a_step
from hf_relpos.conversion.examination import Examination
from hf_relpos.conversion.fidelity import FidelityReport, FidelityRow
from hf_relpos.conversion.labels import labels_for
from hf_relpos.conversion.reading import Reading, mean_of_states, read, read_as_original
from hf_relpos.conversion.texts import read_documents, split

FRAME = Frame(prefix=(1,), suffix=(2,), pad=0, reach=16, causal=False)


# Texts


def ids(texts, **more):
    return read_documents(texts, tokenizer(), 10**6, **more)


EXPECTED = [[tokenizer().vocab[word] for word in text.split()] for text in ("w1 w2 w3", "w4 w5")]


def test_all_sources_give_the_same_documents(tmp_path):
    texts = ["w1 w2 w3", "", "w9", "w4 w5"]
    (tmp_path / "texts.txt").write_text("w1 w2\nw3\n\n\nw9\n \nw4 w5", encoding="utf-8")
    table = datasets.Dataset.from_dict({"text": texts, "body": texts[::-1]})
    for source in (
        texts,
        iter(texts),
        table,
        table.to_iterable_dataset(),
        tmp_path / "texts.txt",
        str(tmp_path / "texts.txt"),
    ):
        assert ids(source) == EXPECTED
    assert ids(table, column="body") == EXPECTED[::-1]


def test_a_file_of_lines_is_one_text_and_is_said_to_be(tmp_path, caplog):
    for number, (text, said) in enumerate({"w1 w2\nw3\n": True, "w1 w2 w3\n": False, "w1\n\nw2\nw3": False}.items()):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
        caplog.clear()
        ids(tmp_path / f"{number}.txt")
        assert (f"{number}.txt is read as one text of 2 lines" in caplog.text) == said


def test_no_more_is_read_than_is_needed():
    def endless():
        while True:
            yield "w1 w2 w3"

    assert sum(map(len, read_documents(endless(), tokenizer(), 1000))) == pytest.approx(1000, abs=3)


def test_a_table_without_the_column_and_a_dictionary_of_tables_are_refused(tmp_path):
    table = datasets.Dataset.from_dict({"body": ["w1 w2"]})
    with pytest.raises(TextsError, match=r"no column 'text', but 'body'\. Name the one"):
        ids(table)
    (tmp_path / "table.jsonl").write_text('{"body": "w1 w2"}', encoding="utf-8")
    with pytest.raises(TextsError, match=r"', a folder\) cannot be read: it has no column 'text', but 'body'"):
        ids(tmp_path)
    with pytest.raises(TextsError, match=r"has the parts 'train'\. Give one"):
        ids(datasets.DatasetDict({"train": table}))
    with pytest.raises(TextsError, match="an empty name"):
        ids(" ")
    with pytest.raises(TextsError, match="give a text file, a data set"):
        ids({"text": ["w1 w2"]})


def test_what_is_measured_on_is_not_learned_from():
    documents = [[number, number] for number in range(100)]
    learned, held_out = split(documents, seed=0)
    assert len(held_out) == 5
    assert sorted(learned + held_out) == documents
    assert split(documents, seed=1)[1] != held_out
    assert split(documents[:1], seed=0) == (documents[:1], documents[:1])


# Batches


def test_special_tokens_are_around_each_text_and_padding_is_masked():
    batch = FRAME.batch([[5, 6, 7], [8]])
    assert batch["input_ids"].tolist() == [[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["weights"].tolist() == [0.5, 0.5]


@pytest.mark.core
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [15, 16, 22, 40, 75])
def test_windows_tell_each_token_once_from_where_the_original_sees_enough(length, causal):
    frame = Frame((1,), (2,), 0, 16, causal)
    content = list(range(100, 100 + length))
    batch = frame.batch([content, content[:5]])
    sequence, told = frame.around(content), []
    for window in batch["windows"]:
        rows = frame.around(window.ids)
        assert len(rows) <= 16
        row = sequence if window.row == 0 else frame.around(content[:5])
        mine = rows[window.source : window.source + window.count]
        assert mine == row[window.target : window.target + window.count]
        told += mine if window.row == 0 else []
        if window.row == 0 and window.target > 1:
            assert window.source - 1 >= (7 if causal else 3)
        if window.row == 0 and not causal and mine[-1] != content[-1]:
            assert 15 - (window.source + window.count) >= 3
    assert told == content


def test_a_step_follows_from_seed_and_number_alone_and_shares_make_up_the_whole():
    documents = [list(range(start, start + 50)) for start in range(0, 1000, 50)]

    def steps(shares, seed="0"):
        return Steps(documents, FRAME, (8, 16), 64, 10, seed, shares)

    whole, halves = steps(1), steps(2)
    assert (len(whole), len(halves)) == (10, 20)
    assert torch.equal(steps(1)[7]["input_ids"], whole[7]["input_ids"])
    assert not torch.equal(steps(1, "1")[7]["input_ids"], whole[7]["input_ids"])
    for step in range(10):
        parts = [halves[2 * step], halves[2 * step + 1]]
        rows = sorted(row for part in parts for row in part["input_ids"].tolist())
        assert rows == sorted(whole[step]["input_ids"].tolist())
        assert sum(float(part["weights"].sum()) for part in parts) / 2 == pytest.approx(1)


def test_a_process_without_a_sequence_of_its_own_counts_nothing():
    alone = Steps([list(range(50))], FRAME, (16,), 16, 1, "0", 2)
    assert alone[0]["weights"].tolist() == [2.0]
    assert alone[1]["weights"].tolist() == [0.0]


def test_about_as_many_tokens_are_read_at_each_length():
    data = Steps([list(range(100))], FRAME, (8, 64), 16, 400, "0")
    tokens = {8: 0, 64: 0}
    for step in range(len(data)):
        rows, length = data[step]["input_ids"].shape
        tokens[length] += rows * length
    assert 0.75 < tokens[8] / tokens[64] < 1.33
    assert sum(tokens.values()) / len(data) == pytest.approx(tokens_in_a_step((8, 64), 16), rel=0.1)


def test_short_documents_are_joined_where_long_ones_are_needed():
    assert beginnings([[1, 2], [3, 4], [5, 6]], 5, 2) == [[1, 2, 3, 4, 5], [3, 4, 5, 6, 1]]
    sizes = {len(Steps([[7] * 4], FRAME, (12,), 12, 40, "0")[step]["input_ids"][0]) for step in range(40)}
    assert sizes == {6, 12}


# Readings


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_what_the_original_says_of_a_long_text_is_what_it_says_of_its_windows(family):
    model = build(family)
    frame = Frame((), (), 0, tiny.POSITIONS, family == "gpt2")
    content = tiny.tokens(40).tolist()
    reading = read_as_original(model, frame.batch([content]), mean_of_states)
    (states,), mask = list(reading.states.values()), reading.masks["hidden_states"]
    assert mask.all()
    window = frame.batch([content])["windows"][1]
    start = window.target - window.source
    alone = read(model, frame.batch([content[start : start + 16]]), mean_of_states)
    for whole, part in zip((*states, reading.logits), (*alone.states["hidden_states"], alone.logits), strict=True):
        told = slice(window.target, window.target + window.count)
        tiny.assert_close(whole[0, told], part[0, window.source : window.source + window.count].detach())


def reading(states, embedding, logits=None):
    mask = torch.tensor([[1, 1, 0]])
    return Reading({"hidden_states": states}, {"hidden_states": mask}, logits, embedding)


def test_the_loss_by_hand():
    one, two = torch.ones(1, 3, 2), torch.full((1, 3, 2), 2.0)
    theirs = reading((one, one, two), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 3, 2))
    mine = reading((two, two, one), torch.tensor([[0.0, 1.0]]), torch.tensor([[[1.0, 0.0]] * 3]))
    # The embeddings' layer is not matched; the layers' relative errors are 1 and 1/4; the cosine is 0.
    divergence = -0.5 * sum(torch.tensor([1.0, 0.0]).log_softmax(0) + torch.log(torch.tensor(2.0)))
    for weights, expected in (
        (Matching(1, 0, 0, 0), 0.625),
        (Matching(0, 1, 0, 0), 0.25),
        (Matching(0, 0, 1, 0), 1.0),
        (Matching(0, 0, 0, 1), float(divergence)),
    ):
        assert weights.loss(mine, theirs, torch.tensor([1.0])) == pytest.approx(expected)
        assert weights.loss(mine, theirs, torch.tensor([0.5])) == pytest.approx(expected / 2)
        assert weights.loss(theirs, theirs, torch.tensor([1.0])) == pytest.approx(0, abs=1e-6)
    # The embedding of what was read in windows counts by itself, where no head says something of each token.
    weights = Matching(0, 0, 0, 0, long_embedding=0.3)
    for logits, in_windows, expected in ((None, True, 0.3), (None, False, 0), (theirs.logits, True, 0)):
        long = dataclasses.replace(theirs, logits=logits, in_windows=in_windows)
        assert weights.loss(mine, long, torch.tensor([1.0])) == pytest.approx(expected)


def test_padding_changes_no_loss_and_no_embedding():
    model = build("bert")
    short, padded = ([[5, 6, 7]], [[5, 6, 7], [5, 6, 7, 8, 9, 10]])
    alone, beside = (read(model, FRAME.batch(rows), mean_of_states) for rows in (short, padded))
    tiny.assert_close(alone.embedding[0], beside.embedding[0])


# What comes of it


def test_the_original_is_asked_once_and_a_decoder_is_held_against_its_windows():
    model, frame = build("gpt2"), Frame(prefix=(), suffix=(), pad=0, reach=8, causal=True)
    documents = [list(range(3, 15)), list(range(20, 32))]
    exam = Examination.of(documents, frame, (8, 12), 16, labels_for(model, frame, None, 0), model, mean_of_states)
    within, beyond = exam.measure("", copy.deepcopy(model))
    assert (within.embedding, within.agreement) == (pytest.approx(1), 1)
    assert within.original_loss == pytest.approx(within.converted_loss, abs=1e-6)
    # Of twelve tokens the first eight are read as they are, the last four with four before them.
    whole = torch.tensor(documents)
    said = torch.cat([model(whole[:, :8]).logits, model(whole[:, 4:]).logits[:, 4:]], 1)[:, :-1]
    expected = torch.nn.functional.cross_entropy(said.flatten(0, 1), whole[:, 1:].flatten())
    assert beyond.original_loss == pytest.approx(expected.item(), abs=1e-5)
    asked = []
    model.register_forward_hook(lambda *_: asked.append(1))
    assert exam.measure("", copy.deepcopy(patch_model(build("gpt2"), "shaw")))[1].original_loss == beyond.original_loss
    assert not asked


def test_a_stage_ends_when_the_target_is_reached(monkeypatch):
    monkeypatch.setattr("hf_relpos.conversion.stages.LOOK_EVERY", 2)
    early, late = (converted(build("bert"), steps=(6, 0), target=target) for target in (0.1, None))
    stopped = converted(build("bert"), steps=(2, 0))
    name = next(name for name in tiny.added(early) if "bias_table" in name)
    # Two steps of six: at the rate of the longer schedule.
    assert not torch.equal(early.state_dict()[name], late.state_dict()[name])
    assert tiny.differ(early.state_dict()[name], stopped.state_dict()[name]) < tiny.differ(
        late.state_dict()[name], stopped.state_dict()[name]
    )


def test_the_report_is_a_table_and_comes_back_from_its_file(tmp_path):
    report = FidelityReport(
        [FidelityRow("start", 64, 0.5, 0.25), FidelityRow("all", 64, 0.75, 0.5, 1.0)], 3.0, {"seed": 1}
    )
    report.save(tmp_path / "fidelity.json")
    assert FidelityReport.load(tmp_path / "fidelity.json") == report
    assert str(report).splitlines()[-1].split() == ["all", "64", "0.7500", "0.5000", "1.0000"]
    assert repr(report) == str(report)  # what a notebook shows
    assert "loss" not in str(report)
    assert report.final == report.rows[1:]
    report.plot(tmp_path / "fidelity.png")
    assert (tmp_path / "fidelity.png").stat().st_size > 1000


def test_the_picture_of_a_very_good_copy_shows_that_it_is_one():
    report = FidelityReport([FidelityRow("all", 64, 0.999995, 0.99999), FidelityRow("all", 128, 0.99999, 0.99998)])
    for axes in report.figure().axes:
        low, high = axes.get_ylim()
        assert low <= 0.95
        assert high >= 1
        assert not axes.yaxis.get_major_formatter().get_useOffset()


def test_what_is_done_is_said_until_the_first_bar_and_not_where_it_is_not_wanted(capsys):
    converted(build("bert"), steps=(1, 1), progress=True)
    said = capsys.readouterr().err
    assert said.startswith("converting, reading the texts ...\nconverting, watching what positions do")
    assert "converting, measuring the start ...\n" in said
    converted(build("bert"), steps=(1, 1), progress=False)
    assert "converting" not in capsys.readouterr().err


def test_more_training_arguments_reach_the_trainer():
    wild, tame = (
        converted(build("bert"), steps=(3, 0), training_arguments={"optim": optim}).state_dict()
        for optim in ("sgd", "adamw_torch")
    )
    assert not all(torch.equal(wild[name], tensor) for name, tensor in tame.items())


@pytest.mark.parametrize(
    "changed",
    [
        {"batch_tokens": 64},
        {"learning_rates": (1e-3, 3e-4, 3e-3)},
        {"lengths": (8,)},
        {"matching": Matching(embedding=9)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_setting_changes_the_result(changed):
    first, second = (converted(build("bert"), **{"steps": (2, 0), **more}) for more in ({}, changed))
    name = next(name for name in tiny.added(first) if "bias_table" in name)
    assert not torch.equal(first.state_dict()[name], second.state_dict()[name])
