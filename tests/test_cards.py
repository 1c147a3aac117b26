"""Model cards say what the model's config says and what was measured, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
import transformers
from hub_server import PIPELINE_TAGS, errors_of
from huggingface_hub import ModelCard
from tiny import fill
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modelcard import TASK_MAPPING
from transformers.models.t5.modeling_t5 import T5Attention

import hf_relpos
from hf_relpos import (
    ClippedBias,
    PatchStateError,
    RelPosConfig,
    Shaw,
    T5Bias,
    patch_model,
    patch_report,
    unpatch_model,
)
from hf_relpos.cards import ModelCardError, write_model_card
from hf_relpos.cards.card import head_of, model_card
from hf_relpos.cards.facts import horizon, was_trained
from hf_relpos.installing import HOW_TO_INSTALL, WITHOUT_INSTALLING
from hf_relpos.schemes import AttentionGeometry

BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}


@pytest.fixture
def classifier():
    return patch_model(BertForSequenceClassification(BertConfig(**BERT)), Shaw(max_distance=4))


def test_the_card_names_every_choice_of_the_patch(classifier, tmp_path):
    text = write_model_card(classifier, tmp_path / "mine").read_text()
    assert "# mine" in text
    assert "`shaw` (max_distance=4, key=True, value=True" in text
    assert "| pretrained positions | kept, times a learned number" in text
    assert "one learned gate per layer and head" in text
    assert f"{patch_report(classifier).added:,} of" in text
    assert "the model's type, relpos-bert," in text
    assert HOW_TO_INSTALL in text
    assert WITHOUT_INSTALLING in text


def test_several_schemes_and_other_choices_are_all_in_the_card(tmp_path):
    model = BertModel(BertConfig(**BERT))
    config = RelPosConfig([Shaw(4, value=False), T5Bias(max_distance=64)], native="drop", gate="token", window=5)
    text = write_model_card(patch_model(model, config), tmp_path).read_text()
    assert "`shaw` (max_distance=4, key=True, value=False" in text
    assert "`t5` (num_buckets=32, max_distance=64" in text
    assert "| pretrained positions | dropped |" in text
    assert "from each token's query" in text
    assert "| window | 5 tokens to each side |" in text


def test_without_numbers_the_card_says_that_the_model_is_not_trained(classifier, tmp_path):
    path = write_model_card(classifier, tmp_path)
    assert "not yet trained" in path.read_text()
    assert "computes what the pretrained model computed" in path.read_text()
    assert ModelCard.load(path).data.eval_results is None


@pytest.mark.parametrize(
    "config",
    [
        RelPosConfig(Shaw(4), native="drop"),
        RelPosConfig(Shaw(4, init="trunc_normal")),
        RelPosConfig("t5", window=3),
    ],
)
def test_a_patch_that_changes_the_model_at_once_is_not_called_exact(config, tmp_path):
    model = patch_model(BertModel(BertConfig(**BERT)), config)
    assert "changes what the pretrained model computed" in write_model_card(model, tmp_path).read_text()


def test_measured_numbers_are_in_the_text_and_in_the_metadata(classifier, tmp_path):
    path = write_model_card(
        classifier,
        tmp_path,
        base_model="google-bert/bert-base-uncased",
        metrics={"accuracy": 0.9375, "f1_macro": 0.91234, "loss": 0.25},
        baseline={"accuracy": 0.92, "f1_macro": 0.9},
        dataset="BBC news",
        training={"steps": 10, "peak learning rate": 1e-4},
        license="apache-2.0",
        language="en",
    )
    text, data = path.read_text(), ModelCard.load(path).data
    assert "not yet trained" not in text
    assert "| accuracy | 0.9375 | 0.9200 |" in text
    assert "| macro-F1 | 0.9123 | 0.9000 |" in text
    assert "| loss | 0.2500 | not measured |" in text
    assert "| peak learning rate | 0.0001 |" in text
    assert data.base_model == "google-bert/bert-base-uncased"
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-classification"
    assert (data.license, data.language) == ("apache-2.0", "en")
    assert {"hf_relpos", "relative-position"} <= set(data.tags)
    found = {result.metric_name: result for result in data.eval_results}
    assert found["macro-F1"].metric_type == "f1"
    assert found["macro-F1"].metric_value == 0.91234
    assert found["accuracy"].dataset_name == "BBC news"
    assert found["accuracy"].dataset_type == "bbc-news"


def test_numbers_without_a_data_set_stay_out_of_the_metadata(classifier, tmp_path):
    path = write_model_card(classifier, tmp_path, metrics={"accuracy": 0.5})
    assert "| accuracy | 0.5000 |" in path.read_text()
    assert ModelCard.load(path).data.eval_results is None


@pytest.mark.parametrize(
    ("family", "cls", "auto_class", "tag"),
    [
        ("bert", "BertModel", "AutoModel", "feature-extraction"),
        ("bert", "BertForMaskedLM", "AutoModelForMaskedLM", "fill-mask"),
        ("gpt2", "GPT2LMHeadModel", "AutoModelForCausalLM", "text-generation"),
        ("t5", "T5ForConditionalGeneration", "AutoModelForSeq2SeqLM", None),
        ("umt5", "UMT5ForConditionalGeneration", "AutoModelForSeq2SeqLM", None),
    ],
)
def test_the_loading_code_names_an_auto_class_that_loads_the_model(family, cls, auto_class, tag, tmp_path):
    model = patch_model(tiny.build(family, cls), Shaw(max_distance=4))
    model.save_pretrained(tmp_path)
    path = tmp_path / "README.md"  # written on save
    assert f"model = {auto_class}.from_pretrained(" in path.read_text()
    assert ModelCard.load(path).data.pipeline_tag == tag
    assert type(getattr(transformers, auto_class).from_pretrained(tmp_path)) is type(model)


def test_the_tag_is_the_one_that_transformers_has_for_the_stock_class():
    names = [name for name in dir(hf_relpos) if name.startswith("RelPos") and hasattr(transformers, name[6:])]
    models = [getattr(hf_relpos, name) for name in names if not name.endswith("Config")]
    checked = set()
    for task, names in TASK_MAPPING.items():
        for made in models:
            stock = made.relpos_original
            if stock.__name__ in names.values() and task in PIPELINE_TAGS:
                auto_class, tag = head_of(object.__new__(made))
                if auto_class == "AutoModelForSeq2SeqLM":  # BART's can fill masks too
                    continue
                assert tag == task, stock.__name__
                checked.add(task)
    assert checked >= {"fill-mask", "text-generation", "text-classification"}


def test_the_length_limit_is_stated_only_where_there_is_one(tmp_path):
    gated = patch_model(BertModel(BertConfig(**BERT)), Shaw(4))
    dropped = patch_model(BertModel(BertConfig(**BERT)), RelPosConfig(Shaw(4), native="drop"))
    t5 = patch_model(T5ForConditionalGeneration(T5Config(**T5)), Shaw(4))
    texts = [write_model_card(model, tmp_path / str(n)).read_text() for n, model in enumerate((gated, dropped, t5))]
    assert ["more than 16 tokens are refused" in text for text in texts] == [True, False, False]
    assert "is made by `hf_relpos.convert`" in texts[0]
    assert not any("None tokens" in text for text in texts)


def test_the_folder_a_model_came_from_is_not_told(classifier, tmp_path):
    classifier.save_pretrained(tmp_path / "secret-place")
    loaded = type(classifier).from_pretrained(tmp_path / "secret-place")
    path = write_model_card(loaded, tmp_path / "card")
    assert "secret-place" not in path.read_text()
    assert ModelCard.load(path).data.base_model is None


def test_the_hub_id_a_model_was_loaded_from_is_its_base_model(classifier, tmp_path):
    classifier.config._name_or_path = "google-bert/bert-base-uncased"
    path = write_model_card(classifier, tmp_path)
    assert ModelCard.load(path).data.base_model == "google-bert/bert-base-uncased"


def test_a_card_that_is_there_is_replaced_only_on_request(classifier, tmp_path):
    path = tmp_path / "README.md"
    path.write_text("by hand")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write_model_card(classifier, tmp_path)
    assert path.read_text() == "by hand"
    write_model_card(classifier, tmp_path, overwrite=True)
    assert "by hand" not in path.read_text()


def test_a_model_without_a_patch_gets_no_card(tmp_path):
    with pytest.raises(PatchStateError, match="BertModel is not patched"):
        write_model_card(BertModel(BertConfig(**BERT)), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"base_model": "/somewhere/on/disk"},
            r"base_model is '/somewhere/on/disk'.*id of a model on the Hub",
        ),
        ({"language": "English"}, "language is 'English'.*ISO 639"),
        ({"license": "Apache 2"}, "license is 'Apache 2'.*'apache-2.0'"),
    ],
)
def test_metadata_that_the_hub_would_refuse_is_refused_here(given, message, classifier, tmp_path):
    with pytest.raises(ModelCardError, match=message):
        write_model_card(classifier, tmp_path, **given)
    assert not (tmp_path / "README.md").exists()


def test_saving_writes_a_card_and_leaves_one_that_somebody_wrote_alone(classifier, tmp_path):
    classifier.save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "not yet trained" in text
    assert errors_of(text) == []
    (tmp_path / "README.md").write_text("mine")
    classifier.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_card_written_on_saving_follows_the_model(classifier, tmp_path):
    classifier.save_pretrained(tmp_path)
    fill(classifier).save_pretrained(tmp_path)
    assert "not yet trained" not in (tmp_path / "README.md").read_text()
    patch_model(unpatch_model(classifier), "t5").save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| scheme | `t5`" in text
    assert "shaw" not in text


def test_one_edited_character_makes_a_card_its_editors(classifier, tmp_path):
    classifier.save_pretrained(tmp_path)
    path = tmp_path / "README.md"
    edited = path.read_text().replace("## Limits", "## Limits!")
    path.write_text(edited)
    fill(classifier).save_pretrained(tmp_path)
    assert path.read_text() == edited


def test_a_card_with_measured_numbers_survives_a_save(classifier, tmp_path):
    path = write_model_card(classifier, tmp_path, metrics={"accuracy": 0.9375})
    classifier.save_pretrained(tmp_path)
    assert "| accuracy | 0.9375 |" in path.read_text()


def test_only_the_main_process_writes_a_card(classifier, tmp_path):
    classifier.save_pretrained(tmp_path, is_main_process=False)
    assert not (tmp_path / "README.md").exists()


# What is read off the model


@pytest.mark.parametrize("scheme", tiny.SCHEMES)
@pytest.mark.parametrize("gate", tiny.GATES)
def test_a_patch_counts_as_trained_when_something_it_added_has_moved(scheme, gate):
    model = patch_model(tiny.build("bert"), tiny.choices(scheme, gate=gate))
    state = torch.get_rng_state()
    assert was_trained(model) is False
    assert torch.equal(torch.get_rng_state(), state)  # looking does not disturb the user's random numbers
    for name, parameter in tiny.added(model).items():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-3
        starts_random = name.endswith("right")
        assert was_trained(model) is (not starts_random), name
        with torch.no_grad():
            parameter.copy_(before)
    assert was_trained(model) is False


def test_a_reloaded_patch_that_was_not_trained_is_still_not_trained(classifier, tmp_path):
    classifier.save_pretrained(tmp_path)
    assert was_trained(type(classifier).from_pretrained(tmp_path)) is False


def test_where_the_start_values_are_random_or_not_here_nothing_is_claimed():
    random = patch_model(tiny.build("bert"), RelPosConfig(Shaw(4, init="trunc_normal"), native="keep", gate="none"))
    assert was_trained(random) is None
    away = patch_model(tiny.build("bert"), "shaw").to("meta")
    assert was_trained(away) is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scheme", [T5Bias(), T5Bias(64, 300), T5Bias(8, 6), Shaw(5), Shaw(1, rank=2), ClippedBias(7)])
def test_the_stated_horizon_is_where_the_tables_become_constant(scheme, causal):
    geometry = AttentionGeometry(num_heads=2, head_dim=8, causal=causal)
    far = 3 * scheme.horizon
    distances = range(far + 1)
    if isinstance(scheme, T5Bias):  # by the published function
        offsets = -torch.arange(far + 1)
        rows = T5Attention._relative_position_bucket(offsets, not causal, scheme.num_buckets, scheme.max_distance)
    else:
        rows = torch.arange(far + 1).clamp(max=scheme.max_distance)
    expected = next(n for n in distances if (rows[n:] == rows[-1]).all())
    assert horizon(scheme, geometry) == expected


def test_t5s_last_bucket_begins_before_its_max_distance():
    """91 in an encoder, 113 in a decoder, with the usual 32 buckets up to 128."""
    text = model_card(patch_model(tiny.build("t5"), "t5"), "x").text
    assert (
        "`t5` does not tell tokens apart that are 91 or more positions away on the same side (113 in the decoder)."
        in text
    )
    text = model_card(patch_model(tiny.build("gpt2"), "t5"), "x").text
    assert "that are 113 or more positions away on the same side." in text


# The Trainer's card


def trainer_of(model, folder):
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": tiny.tokens(6, seed=index), "labels": index % 2} for index in range(4)]
    args = TrainingArguments(
        str(folder),
        max_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model, args, train_dataset=data, eval_dataset=data, compute_metrics=measured)


def measured(prediction):
    return {"accuracy": 0.5, "f1_macro": 0.25}


@pytest.fixture
def trained(classifier, tmp_path):
    trainer = trainer_of(classifier, tmp_path)
    trainer.train()
    trainer.save_model()
    return trainer


def test_the_trainers_card_is_ours_with_what_the_trainer_knows(trained, tmp_path):
    trained.create_model_card(
        model_name="news", license="mit", language="en", tasks="text-classification", dataset="BBC", dataset_tags="bbc"
    )
    text = (tmp_path / "README.md").read_text()
    assert "# news\n" in text
    assert "| scheme | `shaw`" in text
    assert "Measured on BBC." in text
    assert "| accuracy | 0.5000 |" in text
    assert "| macro-F1 | 0.2500 |" in text
    assert "| learning_rate | 5e-05 |" in text
    assert "| Training Loss | Epoch | Step | Validation Loss | Accuracy | F1 Macro |" in text
    data = ModelCard(text).data
    assert (data.license, data.language) == ("mit", "en")
    assert data.tags == ["hf_relpos", "relative-position", "generated_from_trainer"]
    assert {result.metric_name for result in data.eval_results} == {"loss", "accuracy", "macro-F1"}
    assert errors_of(text) == []


def test_what_the_trainer_does_not_know_can_be_told_to_its_card(trained, tmp_path):
    trained.create_model_card(dataset="BBC", metrics={"accuracy": 0.75}, training={"training data": "news.csv, 9 rows"})
    text = (tmp_path / "README.md").read_text()
    assert "| accuracy | 0.7500 |" in text
    assert "| macro-F1 |" not in text  # of the Trainer's log
    assert text.index("| training data | news.csv, 9 rows |") < text.index("| learning_rate | 5e-05 |")
    assert errors_of(text) == []


def test_the_trainers_card_survives_saves_and_is_renewed_by_the_trainer(trained, tmp_path):
    trained.create_model_card()
    before = (tmp_path / "README.md").read_text()
    trained.save_model()
    assert (tmp_path / "README.md").read_text() == before
    trained.create_model_card(model_name="renewed")
    assert "# renewed\n" in (tmp_path / "README.md").read_text()


def test_the_trainer_completes_the_metadata_of_a_card_that_somebody_wrote(trained, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nRead me.\n")
    trained.create_model_card(license="apache-2.0")
    text = (tmp_path / "README.md").read_text()
    assert text.endswith("---\n# Mine\n\nRead me.\n")
    assert ModelCard(text).data.license == "mit"
    assert "generated_from_trainer" in ModelCard(text).data.tags


def test_the_trainers_card_of_another_model_is_what_it_was(classifier, tmp_path):
    classifier.save_pretrained(tmp_path / "patched")  # from here on the Trainer knows of patched models
    plain = BertForSequenceClassification(BertConfig(**BERT))
    trainer = trainer_of(plain, tmp_path / "plain")
    trainer.train()
    trainer.create_model_card()
    path = tmp_path / "plain" / "README.md"
    ours = path.read_text()
    type(trainer).create_model_card.__wrapped__(trainer)  # the Trainer's own
    assert path.read_text() == ours
    assert "hf_relpos" not in ours


CARDS = Path(__file__).parent.parent / "model_cards"
TEMPLATE, README = CARDS / "TEMPLATE.md", CARDS / "README.md"
KEPT = sorted(set(CARDS.glob("*.md")) - {TEMPLATE, README})


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_the_cards_of_the_projects_own_runs_say_what_was_measured_in_the_form_that_is_written_today(path):
    card = ModelCard.load(path)
    assert card.data.library_name == "transformers"
    assert "hf_relpos" in card.data.tags
    for result in card.data.eval_results:
        name = {"f1": "macro-F1"}.get(result.metric_type, result.metric_type)
        assert f"| {name} | {result.metric_value:.4f} |" in card.text
    headings = [line for line in TEMPLATE.read_text().splitlines() if line.startswith("## ")]
    assert [line for line in card.text.splitlines() if line.startswith("## ")] == headings
    assert HOW_TO_INSTALL in card.text
    assert f"({path.name})" in README.read_text()
