"""`hf-relpos patch`: a folder, or a repo, with everything in it, or none."""

from __future__ import annotations

import pytest
import tiny
from safetensors import SafetensorError
from test_pipelines import tokenizer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from hf_relpos import RelPosConfig, Shaw, T5Bias, is_patched, patch_model
from hf_relpos.cli import main, models


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder to work in, with a model."""
    monkeypatch.chdir(tmp_path)
    tiny.build("bert").save_pretrained("stock")
    tokenizer().save_pretrained("stock")
    return tmp_path


def run(*options, model="stock", output="made"):
    return main(["patch", model, "--output-dir", output, *options])


@pytest.mark.core
def test_the_folder_loads_as_what_the_function_makes_with_tokenizer_and_card(given, capsys):
    options = "--native keep --gate token --window 5 --layers 1 --share-layers"
    assert run("--scheme", "shaw:4,value=false", "t5", *options.split()) == 0
    expected = patch_model(
        tiny.build("bert"),
        RelPosConfig(
            [Shaw(4, value=False), T5Bias()], native="keep", gate="token", window=5, layers=[1], share_layers=True
        ),
    )
    made = tiny.load(AutoModelForMaskedLM, "made")
    assert made.config.relpos == expected.config.relpos
    tiny.assert_equal_models(made, expected, tiny.inputs("bert"))
    assert AutoTokenizer.from_pretrained("made")("w1").input_ids == tokenizer()("w1").input_ids
    assert "# made" in (given / "made" / "README.md").read_text(encoding="utf-8")
    assert 'AutoModelForMaskedLM.from_pretrained("made")' in capsys.readouterr().out
    assert sorted(path.name for path in given.iterdir()) == ["made", "stock"]


@pytest.mark.parametrize("option", ["--native", "--gate"])
def test_a_choice_that_there_is_not_is_told_of_the_option(option, given, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("--scheme", "shaw", option, "lose")
    assert f"argument {option}: invalid choice: 'lose'" in capsys.readouterr().err


def test_what_is_no_option_is_one_line_of_the_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["convert", "m", "--texts", "t", "--scheme", "shaw", "--output-dir", "o", "--native", "keep"])
    name = "hf-relpos convert"
    said = f"{name}: error: unrecognized arguments: --native keep. {name} --help shows all options.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--scheme", "shaw:8:9"],
            "--scheme shaw:8:9: '9' must be a whole number right after 'shaw', its clip distance",
        ),
        (["--scheme", "shaw:far"], "--scheme shaw:far: 'far' must be a whole number"),
        (["--scheme", "shaw:4,size=3"], "Shaw has no field 'size'; it has 'max_distance'"),
        (["--scheme", "none:4"], "--scheme none:4: there is no scheme 'none'. Give one of shaw, "),
        (
            ["--scheme", f"clipped:{10**20}"],
            f"`max_distance` is {10**20}, but must be a whole number from 1 to 1048576",
        ),
        (["--scheme", "shaw:0"], "--scheme shaw:0: Shaw: `max_distance` is 0, but must be"),
        (["--scheme", "shaw", "--layers", "7"], "--layers names [7], but BertForMaskedLM has the layers 0 to 1"),
        (["--scheme", "shaw", "--push-to-hub", "me/my/model"], "--push-to-hub me/my/model: that cannot be the id"),
        (["--scheme", "shaw", "--output-dir", "stock"], "--output-dir stock is there already, with files in it"),
    ],
    ids=["twice", "distance", "field", "scheme", "huge", "zero", "layers", "repo", "output"],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_written(options, said, given, capsys):
    before = sorted(given.rglob("*"))
    assert run(*options) == 2
    assert said in capsys.readouterr().err
    assert sorted(given.rglob("*")) == before


def test_a_place_to_go_to_is_asked_for_before_the_model_is_loaded(capsys):
    assert main(["patch", "nothing", "--scheme", "shaw"]) == 2
    assert "give --output-dir DIR, or --push-to-hub ID, or both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError(28, "No space left on device"), 2), (SafetensorError("No space left"), 2), (KeyboardInterrupt(), 130)],
    ids=["disk", "safetensors", "ctrl-c"],
)
def test_what_stops_the_saving_leaves_no_folder(error, status, given, monkeypatch, capsys):
    save = PreTrainedModel.save_pretrained

    def stopped(*args, **kwargs):
        save(*args, **kwargs)
        raise error

    before = sorted(given.rglob("*"))
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", stopped)
    assert run("--scheme", "shaw", output="new/made") == status
    assert sorted(given.rglob("*")) == before
    assert ("--output-dir new/made: it cannot be written" if status == 2 else "interrupted") in capsys.readouterr().err


def test_a_tokenizer_that_transformers_makes_up_is_not_saved_along(given, capsys):
    tiny.build("bert").save_pretrained("bare")
    assert run("--scheme", "shaw", model="bare") == 2
    assert f"MODEL bare has no tokenizer that fits it: one of 5 tokens was found, and the model has {tiny.VOCAB}" in (
        capsys.readouterr().err
    )
    assert not (given / "made").exists()


def test_without_a_model_it_takes_that_of_the_demo_extra_whose_id_the_card_names(given, monkeypatch):
    monkeypatch.setattr(models, "embedded_model_folder", lambda: given / "stock")
    assert main(["patch", "--scheme", "shaw", "--output-dir", "made"]) == 0
    assert type(AutoModel.from_pretrained("made")).__name__ == "RelPosBertModel"
    assert f"base_model: {models.EMBEDDED_MODEL_ID}\n" in (given / "made" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("output", [None, "made"])
def test_a_push_that_fails_says_whether_the_result_is_here(output, given, capsys):
    options = ["--scheme", "shaw", "--push-to-hub", "me/made"]
    assert main(["patch", "stock", *options, *(["--output-dir", output] if output else [])]) == 2
    said = capsys.readouterr().err
    assert ("the result is in made, but could not be pushed" if output else "nothing was pushed") in said
    assert sorted(path.name for path in given.iterdir()) == ["made", "stock"] if output else ["stock"]


def test_a_sentence_model_stays_one_and_its_card_says_what_to_import(given):
    st = pytest.importorskip("sentence_transformers")
    st.SentenceTransformer("stock", device="cpu").save_pretrained("sentences")
    assert run("--scheme", "shaw:4", model="sentences") == 0
    made, original = (st.SentenceTransformer(name, device="cpu") for name in ("made", "sentences"))
    assert is_patched(made)
    tiny.assert_close(made.encode("w1 w2", convert_to_tensor=True), original.encode("w1 w2", convert_to_tensor=True))
    card = (given / "made" / "README.md").read_text(encoding="utf-8")
    assert "Import `hf_relpos` before this model is loaded." in card
    assert "max_distance=4" in card
