"""`compare` and `sweep`: what is run, what is kept, what is shown of it, and what is refused."""

from __future__ import annotations

import base64
import csv
import json
import mmap
import re
import shutil
import subprocess
from xml.etree import ElementTree

import datasets
import fresh
import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from test_pipelines import tokenizer
from transformers import BertConfig, BertModel, TrainerControl, TrainerState

import hf_relpos
from hf_relpos import ComparisonError, RelPosConfig, Shaw, T5Bias, compare, sweep
from hf_relpos.cli import compare as command
from hf_relpos.cli import main
from hf_relpos.comparing import Comparison
from hf_relpos.comparing import comparison as comparing
from hf_relpos.comparing.apart import run_apart
from hf_relpos.comparing.drawing import draw
from hf_relpos.comparing.examples import Example, TextData
from hf_relpos.comparing.marked_words import CLASSES, MARKER, WORDS, marked_words
from hf_relpos.comparing.memory import StepMemory
from hf_relpos.comparing.run import run_here
from hf_relpos.comparing.settings import Setting, parse, settings_of

pytest.importorskip("matplotlib", reason="plots are drawn with matplotlib, from the demo extra")
pytest.importorskip("sklearn", reason="runs are measured with scikit-learn, from the demo extra")

# Which of two words comes first.
ROWS = [(f"w{i} w{j}", "up" if i < j else "down") for i in range(1, 7) for j in range(1, 7) if i != j]
FEW = {"steps": 2, "max_length": 12, "seeds": (0,), "eval_limit": 4, "progress": False}
SETTINGS = ("unpatched", "shaw:4", "drop/clipped:4")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a pretrained model."""
    folder = tmp_path_factory.mktemp("pretrained") / "tiny-bert"
    torch.manual_seed(0)
    BertModel(BertConfig(**tiny.BERT_LIKE)).save_pretrained(folder)
    tokenizer(model_max_length=tiny.POSITIONS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def compared(model):
    """Three settings with two seeds."""
    return compare(model, ROWS, settings=SETTINGS, **{**FEW, "seeds": (0, 1)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with texts."""
    monkeypatch.chdir(tmp_path)
    with open("rows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *ROWS])
    return tmp_path


def losses(comparison):
    return {(result.setting, result.seed): result.run.eval_loss for result in comparison.results}


class TestSettings:
    """Words, and what they stand for."""

    @pytest.mark.parametrize(
        ("word", "schemes", "native", "converted"),
        [
            ("shaw:8", Shaw(8), "keep", False),
            ("t5+shaw:8,value=false", [T5Bias(), Shaw(8, value=False)], "keep", False),
            ("gate", Shaw(16), "gate", False),
            ("drop/t5:64", T5Bias(max_distance=64), "drop", False),
            ("converted/shaw:4", Shaw(4), "drop", True),
        ],
    )
    def test_a_word_stands_for_these_choices(self, word, schemes, native, converted):
        assert parse(word) == Setting(word, RelPosConfig(schemes, native=native), converted)
        assert Setting.from_dict(json.loads(json.dumps(parse(word).to_dict()))) == parse(word)

    def test_names_of_ones_own(self):
        ours, plain = settings_of({"ours": RelPosConfig("shaw", gate="token"), "plain": None})
        assert (ours.name, ours.relpos.gate, plain) == ("ours", "token", Setting("plain", None))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["shawn"], "The setting 'shawn' is none: there is no scheme 'shawn'"),
            (
                ["shaw:8", "lose/shaw:8"],
                "begins with 'lose'/, but must begin with one of keep/, gate/, drop/, converted/",
            ),
            (["drop/shaw:0"], "`max_distance` is 0"),
            (["t5", "t5"], "none of them twice"),
            ([], "are none. Give at least one"),
            ("shaw:8", "Give a list of settings"),
        ],
    )
    def test_what_is_none_is_told(self, given, said):
        with pytest.raises(ComparisonError, match=re.escape(said)):
            settings_of(given)


class TestRuns:
    """A fair comparison: with a seed, what differs is the setting alone."""

    def test_every_setting_runs_with_every_seed_seed_by_seed(self, compared):
        assert list(losses(compared)) == [(name, seed) for seed in (0, 1) for name in SETTINGS]

    def test_settings_that_start_exact_start_alike_and_end_apart(self, compared):
        found = losses(compared)
        for seed in (0, 1):
            assert found["shaw:4", seed][0] == pytest.approx(found["unpatched", seed][0], abs=1e-5)
            assert found["shaw:4", seed][-1] != found["unpatched", seed][-1]
        assert abs(found["drop/clipped:4", 0][0] - found["unpatched", 0][0]) > 1e-5
        assert found["unpatched", 0][0] != found["unpatched", 1][0]

    def test_the_same_seeds_give_the_same_results(self, model, compared):
        again = compare(model, ROWS, settings=SETTINGS[1:2], **{**FEW, "seeds": (1,)})
        assert losses(again) == {("shaw:4", 1): losses(compared)["shaw:4", 1]}

    @pytest.mark.parametrize(
        "choice",
        [
            {"steps": 3}, {"epochs": 2.0, "steps": None}, {"max_length": 1}, {"batch_size": 2}, {"learning_rate": 1e-2},
            {"added_learning_rate": 1e-1}, {"limit": 4}, {"eval_limit": 2}, {"seeds": (5,)},
        ],
        ids=lambda choice: next(iter(choice)),
    )  # fmt: skip
    def test_every_choice_has_an_effect(self, choice, model, compared):
        found = compare(model, ROWS, settings=["shaw:4"], **{**FEW, **choice})
        assert found.results[0].run.eval_loss != losses(compared)["shaw:4", 0]
        if "epochs" in choice:
            assert found.results[0].run.steps[-1] == 2 * -(-found.plan["data"]["train"] // 8)

    def test_what_is_measured_on_is_what_was_given_for_it(self, model):
        found = compare(model, ROWS, [("w1 w2", "up")], settings=["unpatched"], **FEW)
        assert (found.plan["data"]["train"], found.plan["data"]["eval"]) == (len(ROWS), 1)

    def test_a_converted_model_is_made_once_and_learned_before_it_is_compared(self, model, tmp_path, monkeypatch):
        made = []
        convert = comparing.converted_model
        monkeypatch.setattr(comparing, "converted_model", lambda *args: made.append(convert(*args)) or made[-1])
        texts = [(f"{text} w3 w9 w8 w7 w6", label) for text, label in ROWS]
        options = {**FEW, "seeds": (0, 1), "conversion_steps": (1, 1)}
        found = compare(
            model, texts, settings=["converted/shaw:4", "drop/shaw:4"], output_dir=tmp_path / "c", **options
        )
        assert len(set(made)) == 1
        assert json.loads((made[0] / "config.json").read_text())["relpos"]["native"] == "drop"
        assert [path.name for path in made[0].parent.iterdir()] == ["01-converted-shaw-4"]
        assert losses(found)["converted/shaw:4", 0][0] != losses(found)["drop/shaw:4", 0][0]
        weights = (made[0] / "model.safetensors").stat().st_mtime_ns
        compare(model, texts, settings=["converted/shaw:4", "drop/shaw:4"], output_dir=tmp_path / "c", **options)
        assert (made[0] / "model.safetensors").stat().st_mtime_ns == weights


class TestFolder:
    """What is finished stays, and is not done again."""

    OPTIONS = "--settings unpatched shaw:4 --seeds 0 1 --steps 2 --max-length 12 --output-dir made"

    def run(self, model, *more):
        return main(["compare", str(model), "--texts", "rows.csv", *self.OPTIONS.split(), *more])

    def test_ctrl_c_leaves_what_is_finished_and_the_same_command_goes_on(self, model, folder, monkeypatch, capsys):
        assert self.run(model, "--output-dir", "whole") == 0
        ran, run = [], comparing.run_here

        def stopped(plan, job, *rest):
            if len(ran) == 1:
                raise KeyboardInterrupt
            ran.append(str(job))
            return run(plan, job, *rest)

        monkeypatch.setattr(comparing, "run_here", stopped)
        assert self.run(model) == 130
        assert "Finished runs are kept in made (1): the same command goes on from there." in capsys.readouterr().err
        assert sorted(path.name for path in (folder / "made").iterdir()) == ["plan.json", "runs"]
        monkeypatch.setattr(
            comparing, "run_here", lambda plan, job, *rest: ran.append(str(job)) or run(plan, job, *rest)
        )
        assert self.run(model) == 0
        assert ran == ["unpatched, seed 0", "shaw:4, seed 0", "unpatched, seed 1", "shaw:4, seed 1"]
        whole, made = (json.loads((folder / name / "results.json").read_text()) for name in ("whole", "made"))
        assert [run["run"]["eval_loss"] for run in made["runs"]] == [run["run"]["eval_loss"] for run in whole["runs"]]

    @pytest.mark.parametrize(
        ("more", "differs"),
        [
            ("--steps 3", "--steps was 2 and is 3; "),
            ("--seeds 0", "--seeds was [0, 1] and is [0]."),
            ("--settings t5", "--settings was ['unpatched', 'shaw:4'] and is ['t5']."),
            ("--limit 4", "number of texts to learn from (--limit) was 24 and is 4; digest of the texts was "),
            ("--learning-rate 1e-3", "--learning-rate was 0.0001 and is 0.001."),
        ],
    )
    def test_another_plan_is_refused_there(self, more, differs, model, folder, monkeypatch, capsys):
        monkeypatch.setattr(comparing, "run_here", interrupted)
        assert self.run(model) == 130
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert self.run(model, *more.split()) == 2
        assert f"made a comparison with another plan was begun: {differs}" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    def test_the_function_says_what_differs_by_its_arguments(self, model, tmp_path, monkeypatch):
        """Of settings by names of one's own, what differs in the one that does."""
        monkeypatch.setattr(comparing, "run_here", interrupted)
        ours = {"plain": None, "ours": RelPosConfig("shaw", gate="head")}
        with pytest.raises(KeyboardInterrupt):
            compare(model, ROWS, settings=ours, output_dir=tmp_path / "made", **FEW)
        ours["ours"] = RelPosConfig("shaw", gate="token")
        said = "made a comparison with another plan was begun: settings.ours.relpos.gate was 'head' and is 'token'; "
        with pytest.raises(ComparisonError, match=re.escape(f"{said}`batch_size` was 8 and is 4.")):
            compare(model, ROWS, settings=ours, output_dir=tmp_path / "made", **FEW, batch_size=4)

    def test_another_model_of_the_same_name_is_refused_there(self, model, folder, monkeypatch, capsys):
        monkeypatch.setattr(comparing, "run_here", interrupted)
        assert self.run(model) == 130
        other = shutil.copytree(model, folder / "elsewhere" / model.name)
        changed = load_file(other / "model.safetensors")
        next(iter(changed.values())).add_(1)
        save_file(changed, other / "model.safetensors", {"format": "pt"})
        assert self.run(other) == 2
        said = r"a comparison with another plan was begun: digest of the model's files was \w{8} and is \w{8}\."
        assert re.search(said, capsys.readouterr().err)

    @pytest.mark.parametrize(
        ("file", "holds", "said"),
        [
            ("plan.json", "{]", "plan.json is damaged: it holds no object of JSON. Give the name of a new folder."),
            ("runs/01-unpatched.seed-0.json", "", "is damaged: it holds no object of JSON. Take it away"),
            ("runs/01-unpatched.seed-0.json", "[1]", "is damaged: it holds no object of JSON. Take it away"),
            ("runs/01-unpatched.seed-0.json", "{}", "is damaged: it holds no result of a run. Take it away"),
            ("runs/01-unpatched.seed-0.json", None, "holds the run shaw:4, seed 0, but its name is that of unpatched"),
        ],
        ids=["plan", "empty", "list", "fields", "swapped"],
    )
    def test_a_file_that_holds_something_else_is_named(self, file, holds, said, model, folder, capsys):
        assert self.run(model, "--seeds", "0") == 0
        if holds is None:
            holds = (folder / "made/runs/02-shaw-4.seed-0.json").read_text(encoding="utf-8")
        (folder / "made" / file).write_text(holds, encoding="utf-8")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert self.run(model, "--seeds", "0") == 2
        assert said in " ".join(capsys.readouterr().err.split())
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    def test_a_number_that_is_none_is_kept_as_such(self, model, tmp_path):
        """A run that diverged is compared like any other, also when it comes from its file."""
        found = compare(
            model, ROWS, settings=["unpatched"], **{**FEW, "learning_rate": 1e30}, output_dir=tmp_path / "made"
        )
        assert np.isnan(found.results[0].run.eval_loss[-1])
        assert "nan" in found.table()
        assert "NaN" not in json.dumps(json.loads((tmp_path / "made/runs/01-unpatched.seed-0.json").read_text()))


def interrupted(*args):
    raise KeyboardInterrupt


class TestShown:
    """The table, the files and the page have all of it."""

    def test_the_table_has_mean_and_deviation_over_the_seeds(self, compared):
        summary = compared.summary()
        for name in SETTINGS:
            values = [result.run.eval_loss[-1] for result in compared.runs_of(name)]
            assert summary[name]["loss"].mean == pytest.approx(np.mean(values))
            assert summary[name]["loss"].deviation == pytest.approx(np.std(values, ddof=1))
            shown = f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"
            assert re.search(rf"^{re.escape(name)} .*{re.escape(shown)}", str(compared), re.MULTILINE)
        assert "tiny-bert on your texts: 24 texts to learn from, 4 to measure on, 2 classes." in str(compared)

    def test_the_folder_has_a_row_for_each_run_and_a_page_with_all_settings(self, compared, tmp_path):
        compared.save(tmp_path / "made")
        with open(tmp_path / "made" / "results.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [(row["setting"], int(row["seed"])) for row in rows] == list(losses(compared))
        assert [float(row["loss"]) for row in rows] == [result.run.eval_loss[-1] for result in compared.results]
        written = json.loads((tmp_path / "made" / "results.json").read_text(encoding="utf-8"))
        assert [run["run"]["steps"] for run in written["runs"]] == [[0, 1, 2]] * 6
        assert written["summary"]["shaw:4"]["accuracy"]["mean"] == compared.summary()["shaw:4"]["accuracy"].mean
        page = (tmp_path / "made" / "index.html").read_text(encoding="utf-8")
        assert all(f"<th>{name}</th>" in page for name in SETTINGS)
        assert not re.search(r'(src|href)="(?!data:)', page)
        sources = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', page)
        assert len(sources) == len(compared.figures()) == 2
        assert all(ElementTree.fromstring(base64.b64decode(one)).tag.endswith("svg") for one in sources)
        assert str(tmp_path) not in page

    def test_one_that_was_saved_is_read_again(self, compared, tmp_path):
        compared.save(tmp_path)
        again = Comparison.from_dict(json.loads((tmp_path / "results.json").read_text(encoding="utf-8")))
        assert again.results == compared.results
        assert again.to_dict() == json.loads(json.dumps(compared.to_dict()))
        assert str(again) == str(compared)

    @pytest.mark.parametrize("kept", [{}, [], {"runs": [1], "hardware": {}}, {"runs": [{}], "hardware": {}}])
    def test_what_is_no_comparison_is_told(self, kept):
        with pytest.raises(ComparisonError, match=r"no comparison .*results\.json"):
            Comparison.from_dict(kept)

    def test_curves_are_the_numbers_and_are_told_apart_without_colours(self, compared):
        figures = draw(compared)
        lines = figures["curves"].axes[0].lines
        for line, name in zip(lines, SETTINGS, strict=True):
            expected = np.mean([result.run.eval_loss for result in compared.runs_of(name)], axis=0)
            np.testing.assert_allclose(line.get_ydata(), expected)
        assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == len(SETTINGS)
        for figure in figures.values():
            assert all(axes.get_xlabel() for axes in figure.axes)
            assert figure.axes[0].get_ylabel()


def touch(mib):
    """Take so much memory, new to the process, and give it back."""
    with mmap.mmap(-1, mib * 2**20) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1


class TestSweep:
    """The same runs, each in a process of its own."""

    def test_a_row_for_each_distance_with_its_memory_and_a_picture(self, model, monkeypatch):
        monkeypatch.setattr(comparing, "run_apart", run_here)
        found = sweep(model, ROWS, scheme="drop/shaw,value=false", distances=(2, 4), **FEW)
        assert found.names == ["unpatched", "drop/shaw:2,value=false", "drop/shaw:4,value=false"]
        assert "peak memory of steps (MiB)" in str(found)
        axes = found.figures()["distances"].axes
        assert [one.get_ylabel() for one in axes[:2]] == ["accuracy", "validation loss (nats)"]
        assert list(axes[1].lines[2].get_xdata()) == [2, 4]
        expected = [found.summary()[name]["loss"].mean for name in found.names[1:]]
        np.testing.assert_allclose(axes[1].lines[2].get_ydata(), expected)

    def test_a_run_in_a_process_of_its_own_gives_the_same_and_its_memory(self, model, monkeypatch):
        """In a process that is forked: that ``run_fresh`` starts one as it should is another test's business."""
        code = """
            import io, runpy, sys
            sys.stdin = io.StringIO(sys.argv[2])
            runpy.run_module(sys.argv[1], run_name="__main__")
        """

        def forked(module, given, folder):
            return subprocess.CompletedProcess([], 0, fresh.run(code, module, given, folder=folder), "")

        monkeypatch.setattr("hf_relpos.comparing.apart.run_fresh", forked)
        found = []

        def both(plan, job, source):
            found.extend((run_here(plan, job, source), run_apart(plan, job, source)))
            return found[1]

        monkeypatch.setattr(comparing, "run_apart", both)
        compare(model, ROWS, settings=["shaw:4"], memory=True, **FEW)
        here, apart = found
        assert here.run.eval_loss == apart.run.eval_loss
        assert apart.step_mib is None or apart.step_mib > 0

    def test_a_process_that_fails_is_told(self, model, monkeypatch):
        failed = subprocess.CompletedProcess([], 9, "", "first\nno memory left")
        monkeypatch.setattr("hf_relpos.comparing.apart.run_fresh", lambda *args: failed)
        with pytest.raises(ComparisonError, match="the run unpatched, seed 0 ended with status 9: no memory left"):
            sweep(model, ROWS, distances=(2,), **FEW)

    def test_memory_is_that_of_the_steps_alone(self):
        memory, given = StepMemory(), (None, TrainerState(), TrainerControl())
        memory.on_train_begin(*given)
        touch(64)  # between the steps
        memory.on_step_begin(*given)
        touch(16)
        memory.on_step_end(*given)
        if memory.mib is None:
            pytest.skip("this system does not tell")
        assert 12 < memory.mib < 48

    @pytest.mark.parametrize("scheme", ["shaw:4", "shaw+t5", "alibi"])
    def test_a_scheme_that_cannot_be_swept_is_told(self, scheme, model):
        with pytest.raises(ComparisonError, match=r"without a clip distance|no field 'max_distance'"):
            sweep(model, ROWS, scheme=scheme, **FEW)


class TestDistance:
    """A task that only positions can do."""

    TEXTS = tuple(" ".join(f"t{i}x{j}" for j in range(WORDS * 6)) for i in range(8))

    def test_the_class_is_how_far_apart_the_marked_words_stand(self):
        data = marked_words("texts", self.TEXTS, lambda text: True)
        assert (len(data.train), len(data.eval)) == (38, 10)
        for example in (*data.train, *data.eval):
            first, second = (place for place, word in enumerate(example.text.split()) if word == MARKER)
            least, furthest = CLASSES[example.label]
            assert least <= second - first - 1 <= furthest
            assert data.labels[example.label] == f"{least} to {furthest} words apart"
        learned = {word for example in data.train for word in example.text.split()}
        measured = {word for example in data.eval for word in example.text.split()}
        assert learned & measured == {MARKER}

    def test_passages_that_would_be_cut_off_are_left_out(self):
        whole = marked_words("texts", self.TEXTS, lambda text: "t0x" not in text)
        assert not any("t0x" in example.text for example in (*whole.train, *whole.eval))
        with pytest.raises(ComparisonError, match="too few to make a task of"):
            marked_words("texts", self.TEXTS, lambda text: False)

    def test_it_runs_on_texts_without_labels(self, tmp_path):
        config = BertConfig(**{**tiny.BERT_LIKE, "max_position_embeddings": 64})
        BertModel(config).save_pretrained(tmp_path / "wide")
        tokenizer(model_max_length=64).save_pretrained(tmp_path / "wide")
        (tmp_path / "texts.txt").write_text("\n\n".join(self.TEXTS), encoding="utf-8")
        options = {**FEW, "max_length": 40, "settings": ["unpatched"], "task": "distance"}
        found = compare(tmp_path / "wide", tmp_path / "texts.txt", **options)
        assert found.plan["data"]["name"] == "marked words in texts.txt"
        assert found.plan["data"]["labels"][0] == "1 to 4 words apart"


class TestTexts:
    """Data sets, files, pairs."""

    def test_names_of_classes_are_kept(self, model):
        label = datasets.ClassLabel(names=["down", "up"])
        rows = [{"text": text, "label": name} for text, name in ROWS]
        data = datasets.Dataset.from_list(rows, features=datasets.Features(text=datasets.Value("string"), label=label))
        found = compare(model, data, settings=["unpatched"], **FEW)
        assert found.plan["data"]["labels"] == ["down", "up"]

    def test_columns_by_other_names_and_a_file_to_measure_on(self, model, folder):
        rows = [{"body": text, "kind": label} for text, label in ROWS]
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        (folder / "few.jsonl").write_text("\n".join(map(json.dumps, rows[:3])), encoding="utf-8")
        options = "--text-column body --label-column kind --settings unpatched --seeds 0 --steps 1 --max-length 12"
        files = ["--texts", "rows.jsonl", "--eval-texts", "few.jsonl"]
        assert main(["compare", str(model), *files, *options.split(), "--output-dir", "made"]) == 0
        plan = json.loads((folder / "made" / "plan.json").read_text(encoding="utf-8"))
        assert (plan["data"]["name"], plan["data"]["train"], plan["data"]["eval"]) == ("rows", len(ROWS), 3)

    def test_a_part_of_a_data_set_to_measure_on_is_taken(self, model, folder, monkeypatch):
        parts = {"train": datasets.Dataset.from_list([{"text": text, "label": label} for text, label in ROWS])}
        parts["test"] = parts["train"].select(range(5))
        monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(parts))
        options = "--texts me/rows --settings unpatched --seeds 0 --steps 1 --max-length 12 --output-dir made"
        assert main(["compare", str(model), *options.split()]) == 0
        plan = json.loads((folder / "made" / "plan.json").read_text(encoding="utf-8"))
        assert (plan["data"]["name"], plan["data"]["eval"]) == ("me/rows", 5)

    def test_without_a_model_and_texts_it_takes_those_of_the_demo_extra(self, model, folder, monkeypatch):
        examples = [Example(text, int(label == "up")) for text, label in ROWS]
        monkeypatch.setattr(command, "embedded_model_folder", lambda: model)
        monkeypatch.setattr(command, "load_bbc_news", lambda: TextData("news", ["a", "b"], examples, examples))
        options = "--settings unpatched --seeds 0 --steps 1 --max-length 12 --output-dir made"
        assert main(["compare", *options.split()]) == 0
        plan = json.loads((folder / "made" / "plan.json").read_text(encoding="utf-8"))
        assert plan["model"] == "sentence-transformers/all-MiniLM-L6-v2"
        assert plan["data"]["name"] == "news"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--settings shawn", "The setting 'shawn' is none"),
        ("--max-length 17", "--max-length is 17, but"),
        ("--seeds 1 1", "--seeds is [1, 1], but must be different"),
        ("--epochs 0", "--epochs is 0.0, but must be a number above 0"),
        ("--learning-rate nan", "--learning-rate is nan, but must be a number above 0"),
        ("--conversion-steps 9 9", "--conversion-steps is [9, 9], but no setting is `converted`"),
        ("--settings converted --conversion-steps 0 0", "--conversion-steps is [0, 0], but must be two whole"),
        ("--text-column body", "has the columns 'text', 'label', but not 'body'"),
        ("--eval-texts nowhere.csv", "--eval-texts nowhere.csv does not exist"),
        ("--texts texts.txt", "--texts texts.txt is no table, so it has no labels"),
        ("--task distance --label-column kind", "--label-column: --task distance has no labels"),
        ("--texts one.csv", "if nothing else is given. Give --eval-texts, or more texts."),
        ("--output-dir .", "is there already, with files in it, and no comparison was begun there"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_written(options, said, model, folder, capsys):
    (folder / "texts.txt").write_text("w1 w2", encoding="utf-8")
    (folder / "one.csv").write_text("text,label\nw1,up\nw2,down\n", encoding="utf-8")
    before = sorted(folder.rglob("*"))
    given = ["compare", str(model), "--texts", "rows.csv", "--max-length", "12", "--output-dir", "made"]
    assert main([*given, *options.split()]) == 2
    assert said in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": [("w1", "up"), ("w2", "down")]}, "none to measure on"),
        ({"train": ["w1 w2"]}, "pairs of these: of a text and of a name or a whole number, and not 'w1 w2'"),
        ({"train": "rows.csv"}, "and not 'rows.csv'"),
        ({"model": tiny.build("bert"), "train": ROWS}, "`model` is a BertForMaskedLM, but must be a folder"),
        ({"train": [("w1 w2", None)]}, "a name or a whole number, and not ('w1 w2', None)"),
        ({"train": ROWS, "seeds": ["0"]}, "`seeds` is ['0'], but must be different whole numbers"),
        ({"train": ROWS, "steps": 1.5}, "`steps` is 1.5, but must be a whole number above 0"),
        ({"train": ROWS, "epochs": 1}, "`steps` is 2 and `epochs` is 1: give one of the two"),
        ({"train": ROWS, "task": "parsing"}, "`task` is 'parsing', but must be one of 'classification', 'distance'"),
        ({"train": ROWS, "evaluation": ROWS, "task": "distance"}, "takes a part of `train` itself"),
    ],
    ids=["few", "labels", "file", "model", "label", "seeds", "steps", "epochs", "task", "evaluation"],
)
def test_what_the_function_cannot_do_is_told(given, said, model):
    with pytest.raises(ComparisonError, match=re.escape(said)):
        compare(**{**FEW, "model": model, "settings": ["unpatched"], **given})


@pytest.mark.parametrize("patch", [False, True], ids=["nothing", "patched"])
def test_a_model_that_cannot_be_compared_is_told(patch, folder, capsys):
    if patch:
        hf_relpos.patch_model(tiny.build("bert"), "shaw").save_pretrained("given")
        tokenizer().save_pretrained("given")
    assert main(["compare", "given", "--texts", "rows.csv", "--max-length", "12", "--output-dir", "made"]) == 2
    said = "has relative positions already" if patch else "The model given cannot be loaded."
    assert said in capsys.readouterr().err
    assert not (folder / "made").exists()


@pytest.mark.parametrize(("module", "package"), [("matplotlib", "matplotlib"), ("sklearn", "scikit-learn")])
def test_what_is_not_installed_is_named_before_anything_is_done(module, package, monkeypatch, capsys):
    find = command.importlib.util.find_spec
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert main(["sweep", "nothing", "--output-dir", "made"]) == 2
    assert f"needs the package {package}, which is not installed" in capsys.readouterr().err
