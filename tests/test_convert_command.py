"""`hf-relpos convert`: a folder with everything in it, or none."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import tiny
import torch
from hub_server import errors_of
from huggingface_hub import HfApi
from safetensors import SafetensorError
from test_convert import texts
from test_pipelines import tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_relpos import FidelityReport, convert, is_patched
from hf_relpos.cli import main
from hf_relpos.conversion.trainer import ConversionTrainer

FEW = ["--scheme", "clipped:8", "shaw:4", "--steps", "2", "2", "--batch-tokens", "64", "--lengths", "8", "16", "32"]


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder to work in, with a model and texts."""
    monkeypatch.chdir(tmp_path)
    tiny.build("bert").save_pretrained("stock")
    tokenizer(model_max_length=tiny.POSITIONS).save_pretrained("stock")
    (tmp_path / "texts.txt").write_text("\n\n".join(texts()), encoding="utf-8")
    return tmp_path


def run(*more, model="stock", source="texts.txt", output="made"):
    return main(["convert", model, "--texts", source, "--output-dir", output, *FEW, *more])


@pytest.mark.core
def test_the_folder_has_the_model_its_tokenizer_its_card_and_its_fidelity(given, capsys):
    assert run() == 0
    model = AutoModelForMaskedLM.from_pretrained("made")
    assert is_patched(model)
    assert [scheme["max_distance"] for scheme in model.config.relpos["schemes"]] == [8, 4]
    assert AutoTokenizer.from_pretrained("made").model_max_length == 32
    report = FidelityReport.load("made/fidelity.json")
    assert {row.stage for row in report.rows} == {"start", "tables", "all"}
    told = capsys.readouterr()
    assert str(report) in told.out
    assert told.err.startswith("loading stock ...\n")
    card = (given / "made" / "README.md").read_text(encoding="utf-8")
    assert "# made" in card
    assert f"{report.final[0].embedding:.4f}" in card
    assert not errors_of(card)
    assert (given / "made" / "fidelity.png").stat().st_size > 1000
    assert sorted(path.name for path in given.iterdir()) == ["made", "stock", "texts.txt"]


def test_the_card_says_how_it_was_taught_how_near_it_came_and_how_long_it_reads(given):
    assert run() == 0
    card = (given / "made" / "README.md").read_text(encoding="utf-8")
    assert 'name = "made"' in card
    assert "in place of its own: a copy that `hf_relpos` has taught, on texts without labels" in card
    assert "in sequences of up to 32 tokens" in card
    results, training = card.partition("## Results")[2].split("## Training")
    report = FidelityReport.load("made/fidelity.json")
    assert report.markdown in results
    assert "None were given" not in card
    assert all(f"- **{heading}**: " in results for heading in report.table[0])
    assert "| original | stock |" in training
    rates = "0.02 for tables and gates alone, then 0.0006 for them and 6e-05 for the layers"
    matched = (
        "the hidden states of every layer (1.0), what a head predicts (1.0), the embedding of what the original reads "
        "in windows (0.1)"
    )
    assert f"| peak learning rates | {rates} |" in training
    assert f"{matched} |" in training
    assert "It learned from sequences of up to 32 tokens." in training


def test_it_gives_what_the_function_gives(given):
    assert run("--seed", "3", "--gate", "none") == 0
    from hf_relpos import ClippedBias, RelPosConfig, Shaw

    expected = convert(
        tiny.build("bert"), RelPosConfig([ClippedBias(8), Shaw(4)], native="drop", gate="none"), given / "texts.txt",
        tokenizer(), steps=(2, 2), batch_tokens=64, lengths=(8, 16, 32), seed=3, progress=False,
    )  # fmt: skip
    made = AutoModelForMaskedLM.from_pretrained("made").state_dict()
    assert all(torch.equal(made[name], tensor) for name, tensor in expected.state_dict().items())


def test_a_table_with_another_column_is_read(given):
    rows = [json.dumps({"body": text}) for text in texts()]
    (given / "texts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert run("--text-column", "body", source="texts.jsonl") == 0


@pytest.mark.core
def test_a_full_disk_leaves_no_folder_that_looks_finished_and_resuming_ends_it(given, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FidelityReport, "save", full)
        assert run() == 2
    said = capsys.readouterr().err
    assert "--output-dir made: it cannot be written ([Errno 28] No space left on device)" in said
    assert not (given / "made").exists()
    assert run() == 2
    assert "Go on with it by --resume" in capsys.readouterr().err

    def no_step(*args, **kwargs):
        raise AssertionError("nothing is left to be trained")

    monkeypatch.setattr(ConversionTrainer, "compute_loss", no_step)
    assert run("--resume") == 0
    assert is_patched(AutoModelForMaskedLM.from_pretrained("made"))
    assert not (given / "made.unfinished").exists()


@pytest.mark.core
@pytest.mark.parametrize(
    ("steps", "said", "left"),
    [(0, "so nothing is kept.", []), (3, "go on by the same command with --resume.", ["made.unfinished"])],
    ids=["before its first checkpoint", "after it"],
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(steps, said, left, given, monkeypatch, capsys):
    before, done = {path.name for path in given.iterdir()}, []
    compute_loss = ConversionTrainer.compute_loss

    def stopped(*args, **kwargs):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(1)
        return compute_loss(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ConversionTrainer, "compute_loss", stopped)
        assert run("--save-steps", "1") == 130
    assert capsys.readouterr().err.endswith(f"{said}\n")
    assert sorted({path.name for path in given.iterdir()} - before) == left
    assert run("--save-steps", "1", *(["--resume"] if left else [])) == 0


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos: No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_while_training_is_told_and_leaves_no_folder(error, given, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(ConversionTrainer, "save_model", full)
    assert run() == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not (given / "made").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": "nothing"}, "MODEL nothing cannot be loaded"),
        ({"model": "../nothing"}, "MODEL ../nothing does not exist. Give a folder with a model and its tokenizer, or"),
        ({"source": "nothing.csv"}, "--texts nothing.csv does not exist"),
        ({"source": "nothing.txt", "model": "nothing"}, "--texts nothing.txt does not exist. Give the path"),
        ({"source": "../nothing", "model": "nothing"}, "--texts ../nothing does not exist. Give the path"),
        ({"source": "stock", "model": "nothing"}, "--texts stock, a folder, has no column 'text', but 'version'"),
        ({"source": "bare", "model": "nothing"}, "--texts bare cannot be loaded. Give a folder with a data set that"),
        ({"source": "other.jsonl", "model": "nothing"}, "--texts other.jsonl has no column 'text', but 'body'. Name"),
        ({"more": ["--text-column", "body"]}, "--text-column body names a column of a table, but --texts texts.txt is"),
        ({"more": ["--steps", "0", "0"]}, "--steps 0 0 teaches nothing"),
        ({"more": ["--target", "2"]}, "hf-relpos convert: error: --target is 2.0, but must be"),
        ({"more": ["--resume"]}, "--resume: there is nothing to go on with. No conversion into --output-dir made was"),
        ({"more": ["--resume"], "output": "finished"}, "the conversion into --output-dir finished is finished"),
        ({"source": "empty.txt"}, "There is no text in it"),
        ({"output": "."}, "--output-dir . is no name for a new folder. Give one, for example made."),
        ({"output": "stock"}, "--output-dir stock is there already, with files in it"),
        ({"more": ["--scheme", "shaw:far"]}, "--scheme shaw:far: 'far' must be a whole number"),
        ({"more": ["--scheme", "shawn:16"]}, "--scheme shawn:16: there is no scheme 'shawn'. Give one of shaw, "),
    ],
    ids=lambda given: "" if isinstance(given, str) else "-".join(given),
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_written(more, said, given, capsys):
    (given / "empty.txt").touch()
    (given / "other.jsonl").write_text(json.dumps({"body": "w1 w2"}), encoding="utf-8")
    (given / "bare").mkdir()
    (given / "finished").mkdir()
    (given / "finished" / "fidelity.json").touch()
    before = sorted(given.rglob("*"))
    options = {**more}
    assert run(*options.pop("more", ()), **options) == 2
    assert said in capsys.readouterr().err
    assert sorted(given.rglob("*")) == before


def test_the_finished_folder_is_pushed(given, monkeypatch, capsys):
    pushed = {}
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, exist_ok: SimpleNamespace(repo_id=f"me/{repo_id}"))
    monkeypatch.setattr(HfApi, "upload_folder", lambda self, **arguments: pushed.update(arguments))
    assert run("--push-to-hub", "longer") == 0
    assert pushed["repo_id"] == "me/longer"
    assert (pushed["folder_path"] / "model.safetensors").exists()

    def offline(self, **arguments):
        raise ConnectionError("no network")

    monkeypatch.setattr(HfApi, "upload_folder", offline)
    assert run("--push-to-hub", "longer", output="again") == 2
    assert (
        "--push-to-hub longer: the result is in again, but could not be pushed: no network" in capsys.readouterr().err
    )
    assert is_patched(AutoModelForMaskedLM.from_pretrained("again"))


def test_a_sentence_model_is_known_by_its_folder(given):
    st = pytest.importorskip("sentence_transformers")
    shutil.copytree("stock", "bare")
    st.SentenceTransformer("bare", device="cpu").save_pretrained("sentences")
    assert run(model="sentences") == 0
    made = st.SentenceTransformer("made", device="cpu")
    assert is_patched(made)
    assert made.max_seq_length == 32
    card = (given / "made" / "README.md").read_text(encoding="utf-8")
    assert "| stage | tokens | embedding | states |" in card
    assert "- **embedding**: mean cosine" in card
    assert "it learned from sequences of up to 32 tokens" in card
