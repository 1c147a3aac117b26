"""The Hub, by the real client, against a Hub-speaking server on this machine (`hub_server.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import test_pipelines
import test_standalone
import tiny
import torch
import transformers
from hub_server import Hub, errors_of
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from tiny import patched
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from hf_relpos.checkpoints.standalone import ENTRY_FILE, push_to_hub_standalone

ME, YOU = "token-of-me", "token-of-you"

# Everything below that talks to the server runs in a process of its own: the client reads the address when imported.
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(me=ME, you=YOU) as hub:
        yield hub


@pytest.fixture(scope="module")
def settings(hub, tmp_path_factory) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


@pytest.fixture(scope="module")
def run(settings) -> Iterator[Run]:
    """Call a function of this module in a process that has the server for its Hub."""
    with mock.patch.dict(os.environ, settings), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(seen_settings).result() == (settings["HF_ENDPOINT"], False)
        yield lambda function, *args, **kwargs: pool.submit(function, *args, **kwargs).result(timeout=120)


def seen_settings() -> tuple[str, bool]:
    return constants.ENDPOINT, constants.HF_HUB_OFFLINE


# What runs there


def model_of(family: str, seed: int = 1) -> Any:
    return tiny.fill(patched(family, "sum"), seed)


def push(family: str, repo: str, seed: int = 1, **options: Any) -> None:
    model_of(family, seed).push_to_hub(repo, **{"token": ME, **options})


def load(family: str, repo: str, **options: Any) -> Any:
    return getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(repo, **options)


def is_the_same(family: str, repo: str, seed: int = 1, **options: Any) -> bool:
    """Whether what is on the Hub is, bit for bit, the model that was pushed."""
    loaded, model, batch = load(family, repo, **options), model_of(family, seed), tiny.inputs(family)
    states = loaded.state_dict(), model.state_dict()
    assert type(loaded) is type(model)
    assert states[0].keys() == states[1].keys()
    same = all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    return same and torch.equal(tiny.logits(loaded, batch), tiny.logits(model, batch))


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """The error of a call and what caused it, as text; None if there was none."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error} ({type(error.__cause__).__name__})"
    return None


def api(name: str, *args: Any, token: str | None = ME, **kwargs: Any) -> Any:
    return getattr(HfApi(token=token), name)(*args, **kwargs)


def upload_text(repo: str, path: str, text: str, **options: Any) -> None:
    api("create_repo", repo, exist_ok=True)
    api("upload_file", path_or_fileobj=text.encode(), path_in_repo=path, repo_id=repo, **options)


# Models


@pytest.mark.parametrize("family", tiny.KINDS)
def test_what_is_pushed_is_loaded_bit_for_bit_by_its_name(family, hub, run):
    run(push, family, f"me/{family}")
    assert run(is_the_same, family, f"me/{family}")
    assert set(hub.files(f"me/{family}")) >= {"README.md", "config.json", "model.safetensors", ENTRY_FILE}


def test_a_push_from_save_pretrained_works_too(hub, run, tmp_path):
    run(save_and_push, str(tmp_path / "model"), "me/saved")
    assert run(is_the_same, "gpt2", "me/saved")
    assert hub.text("me/saved", "README.md") == (tmp_path / "model" / "README.md").read_text()


def save_and_push(folder: str, repo: str) -> None:
    model_of("gpt2").save_pretrained(folder, push_to_hub=True, repo_id=repo, token=ME)


def test_revisions_hold_different_models(hub, run):
    run(push, "bert", "me/versions", seed=1)
    first = hub.repos["me/versions"].refs["main"]
    run(push, "bert", "me/versions", seed=2, revision="second")
    run(push, "bert", "me/versions", seed=3)
    run(api, "create_tag", "me/versions", tag="v3")
    for revision, seed in ((first, 1), ("second", 2), ("main", 3), ("v3", 3)):
        assert run(is_the_same, "bert", "me/versions", seed, revision=revision), revision
        assert not run(is_the_same, "bert", "me/versions", seed + 1, revision=revision), revision
    assert "third" in run(error_of, load, "bert", "me/versions", revision="third")


def test_a_pull_request_leaves_the_main_branch_alone(hub, run):
    run(push, "bert", "me/asked", seed=1)
    run(push, "bert", "me/asked", seed=2, create_pr=True)
    assert run(is_the_same, "bert", "me/asked", 1)
    assert run(is_the_same, "bert", "me/asked", 2, revision="refs/pr/1")


def test_a_private_repo_needs_its_owners_token(hub, run, tmp_path):
    run(push, "bert", "me/secret", private=True)
    assert hub.repos["me/secret"].private
    assert run(is_the_same, "bert", "me/secret", token=ME)
    for token in (False, YOU):
        options = {"token": token, "cache_dir": str(tmp_path)}  # and not what the owner has downloaded
        assert "me/secret" in run(error_of, AutoConfig.from_pretrained, "me/secret", **options)
    asked = [status for _, path, _, status in hub.log if path.startswith(("/me/secret", "/api/models/me/secret"))]
    assert {401, 404} <= set(asked)  # no token; somebody else's
    assert "Forbidden" in run(error_of, push, "bert", "me/new", token=YOU)


def test_sharded_weights(hub, run):
    run(push, "t5", "me/shards", max_shard_size="20KB")
    shards = [path for path in hub.files("me/shards") if path.endswith(".safetensors")]
    assert len(shards) > 2
    assert run(is_the_same, "t5", "me/shards")


def test_a_download_goes_on_where_the_connection_dropped(hub, run):
    run(push, "gpt2", "me/dropped")
    before = len(hub.log)
    hub.drop("GET", "/cdn/", after=10_000)
    assert run(is_the_same_in_pieces, "gpt2", "me/dropped")
    ranges = [(asked, status) for method, path, asked, status in hub.log[before:] if asked is not None]
    assert ranges == [("bytes=10000-", 206)]


def is_the_same_in_pieces(family: str, repo: str) -> bool:
    """As :func:`is_the_same`, storing what arrives in pieces of 1000 bytes instead of 10 MB, so that some are kept."""
    with mock.patch.object(constants, "DOWNLOAD_CHUNK_SIZE", 1000):
        return is_the_same(family, repo)


def test_an_upload_is_tried_again_when_the_connection_dropped(hub, run):
    hub.drop("PUT", "/lfs/", after=1_000)
    run(push, "gpt2", "me/retried", seed=4)
    assert hub.drops == {}
    assert run(is_the_same, "gpt2", "me/retried", 4)


# Cards


def test_our_card_is_on_the_hub_and_its_metadata_are_valid(hub, run):
    run(push, "bert", "me/carded")
    text = hub.text("me/carded", "README.md")
    assert "# carded\n" in text
    assert 'name = "me/carded"' in text
    assert "| scheme | `shaw`" in text
    assert "automatically generated" not in text
    assert errors_of(text) == []
    assert ("POST", "/api/validate-yaml", None, 200) in hub.log
    wrong = text.replace("library_name: transformers", "license: Apache 2", 1)
    assert "license" in run(error_of, upload_text, "me/carded", "README.md", wrong)


def test_our_card_follows_the_model(hub, run):
    run(push, "bert", "me/followed")
    run(push_shaw, "me/followed")
    text = hub.text("me/followed", "README.md")
    assert "(max_distance=3, key=True" in text
    assert "`t5`" not in text


def push_shaw(repo: str) -> None:
    patched("bert", "shaw").push_to_hub(repo, token=ME)


@pytest.mark.parametrize("way", ["push_to_hub", "save_pretrained", "push_to_hub_standalone"])
def test_a_card_that_somebody_wrote_on_the_hub_stays(way, hub, run, tmp_path):
    repo = f"me/written-before-{way}"
    written = "---\nlicense: mit\ntags:\n- mine\n---\n# Mine\n\nRead me.\n"
    run(upload_text, repo, "README.md", written)
    ways = {"push_to_hub": (push, "gpt2"), "save_pretrained": (save_and_push, str(tmp_path / "model"))}
    run(*ways.get(way, (push_with_code, "gpt2")), repo)
    text = hub.text(repo, "README.md")
    assert text.endswith("# Mine\n\nRead me.\n")
    data = ModelCard(text).data
    assert data.license == "mit"
    assert data.tags == ["mine", "hf_relpos", "relative-position"]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")


def patch_command(folder: str, repo: str) -> int:
    from hf_relpos.cli import main

    with mock.patch.dict(os.environ, {"HF_TOKEN": ME}):
        return main(["patch", folder, "--scheme", "shaw:4", "--push-to-hub", repo])


def test_the_patch_command_pushes_in_one_commit_and_keeps_a_card_that_somebody_wrote(hub, run, tmp_path):
    tiny.build("bert").save_pretrained(tmp_path)
    test_pipelines.tokenizer().save_pretrained(tmp_path)
    assert run(patch_command, str(tmp_path), "by-command") == 0
    commits = len(hub.repos["me/by-command"].commits)
    assert {"model.safetensors", "tokenizer.json"} <= set(hub.files("me/by-command"))
    card = hub.text("me/by-command", "README.md")
    assert 'name = "me/by-command"' in card
    run(upload_text, "me/by-command", "README.md", "Somebody's own words.")
    assert run(patch_command, str(tmp_path), "by-command") == 0
    assert "Somebody's own words." in hub.text("me/by-command", "README.md")
    assert commits == 2  # an empty one when it was made, and the push


def test_a_card_on_another_branch_stays(hub, run):
    run(push, "bert", "me/branches")
    run(api, "create_branch", "me/branches", branch="dev")
    run(upload_text, "me/branches", "README.md", "# By hand\n", revision="dev")
    run(push, "bert", "me/branches", revision="dev")
    assert hub.text("me/branches", "README.md", "dev").endswith("# By hand\n")


def test_what_the_hub_knows_survives_a_new_card(hub, run):
    run(push, "bert", "me/known")
    text = hub.text("me/known", "README.md")
    assert "base_model" not in text
    run(push_with_base, "me/known")
    assert ModelCard(hub.text("me/known", "README.md")).data.base_model == "me/base"
    run(push, "bert", "me/known")
    assert ModelCard(hub.text("me/known", "README.md")).data.base_model == "me/base"


def push_with_base(repo: str) -> None:
    """Push a model that was loaded from another repo, then again from its own: it is not its own base."""
    push("bert", "me/base")
    load("bert", "me/base").push_to_hub(repo, token=ME)
    load("bert", repo, force_download=True).push_to_hub(repo, token=ME)


# The Trainer


def train_and_push(folder: str, repo: str) -> None:
    from transformers import Trainer, TrainingArguments

    model = patched("bert", cls="BertForSequenceClassification")
    data = [{"input_ids": tiny.tokens(6, seed=index), "labels": index % 2} for index in range(8)]
    args = TrainingArguments(
        folder,
        push_to_hub=True,
        hub_model_id=repo,
        hub_token=ME,
        max_steps=2,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        logging_steps=1,
        save_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.push_to_hub()


def test_the_trainer_pushes_model_and_card(hub, run, tmp_path):
    run(train_and_push, str(tmp_path / "trained"), "me/trained")
    loaded = run(type_of, "me/trained")
    assert loaded == "RelPosBertForSequenceClassification"
    text = hub.text("me/trained", "README.md")
    assert "| scheme | `shaw`" in text
    assert "| learning_rate |" in text
    assert "| Validation Loss |" in text
    assert "| loss |" in text
    assert set(ModelCard(text).data.tags) == {"hf_relpos", "relative-position", "generated_from_trainer"}
    assert errors_of(text) == []


def type_of(repo: str) -> str:
    return type(AutoModelForSequenceClassification.from_pretrained(repo)).__name__


def test_the_trainer_leaves_a_card_that_somebody_wrote(hub, run, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "README.md").write_text("# Mine\n\nRead me.\n")
    run(train_and_push, str(folder), "me/mine")
    text = hub.text("me/mine", "README.md")
    assert text.endswith("# Mine\n\nRead me.\n")
    assert "generated_from_trainer" in ModelCard(text).data.tags


# Standalone


def push_with_code(family: str, repo: str, **options: Any) -> None:
    model = model_of(family)
    push_to_hub_standalone(model, repo, token=ME, tokenizer=test_standalone.tokenizer(), **options)


def test_a_standalone_repo_loads_without_the_package(hub, run, settings, tmp_path):
    run(push_with_code, "bert", "me/code", private=True, max_shard_size="10KB")
    run(push_with_code, "bert", "me/code", revision="dev")
    expected = str(test_standalone.expectations(model_of("bert"), "bert", tmp_path / "expected.pt"))
    common = {"name": "me/code", "options": {"trust_remote_code": True, "token": ME}}
    tasks = {
        "head": {**common, "auto_class": "AutoModelForMaskedLM", "expected": expected},
        "tokenizer": {**common, "auto_class": "AutoTokenizer"},
        "dev": {**common, "auto_class": "AutoModel", "options": {**common["options"], "revision": "dev"}},
        "stranger": {
            "name": "me/code",
            "auto_class": "AutoModel",
            "options": {"trust_remote_code": True, "cache_dir": str(tmp_path / "cache")},
        },
    }
    outcomes = test_standalone.without_package(tmp_path, tasks, **settings)
    assert outcomes["head"].pop("off") <= 1e-5
    assert outcomes["head"] == {"class": "RelPosBertForMaskedLM", "recorded": True, "generated": True}
    assert "Tokenizer" in outcomes["tokenizer"]
    assert outcomes["dev"] == "RelPosBertModel"
    assert "me/code" in outcomes["stranger"]
    text = hub.text("me/code", "README.md")
    assert "# code\n" in text
    assert "trust_remote_code=True)" in text
    assert errors_of(text) == []
    # With the package it loads as well, and by the package.
    assert run(is_the_same, "bert", "me/code", token=ME)
    assert run(is_the_same, "bert", "me/code", token=ME, trust_remote_code=True)
    assert run(loads_tokenizer, "me/code")


def loads_tokenizer(repo: str) -> bool:
    return AutoTokenizer.from_pretrained(repo, token=ME)("w3")["input_ids"] == [3]


# The server itself


def test_the_server_answers_as_the_hub_does(hub, run):
    run(upload_text, "me/plain", "folder/a.txt", "one")
    run(upload_text, "me/plain", "b.txt", "two")
    assert run(api, "whoami")["name"] == "me"
    assert sorted(run(api, "list_repo_files", "me/plain")) == ["b.txt", "folder/a.txt"]
    assert [one.path for one in run(api, "get_paths_info", "me/plain", ["b.txt", "none"])] == ["b.txt"]
    titles = [one.title for one in run(api, "list_repo_commits", "me/plain")]
    assert len(titles) == 3
    assert titles[-1] == "initial commit"
    assert [one.name for one in run(api, "list_repo_refs", "me/plain").branches] == ["main"]
    assert Path(run(api, "hf_hub_download", "me/plain", "folder/a.txt")).read_text() == "one"
    assert Path(run(api, "snapshot_download", "me/plain")).joinpath("b.txt").read_text() == "two"
    run(api, "delete_file", "b.txt", "me/plain")
    assert run(api, "list_repo_files", "me/plain") == ["folder/a.txt"]
    for error, name, arguments in (
        (EntryNotFoundError, "hf_hub_download", ("me/plain", "none")),
        (RevisionNotFoundError, "model_info", ("me/plain", "none")),
        (RepositoryNotFoundError, "model_info", ("me/none",)),
    ):
        options = {"revision": arguments[1]} if error is RevisionNotFoundError else {}
        arguments = arguments[:1] if options else arguments
        with pytest.raises(error):
            run(api, name, *arguments, **options)
    run(api, "delete_repo", "me/plain")
    with pytest.raises(RepositoryNotFoundError):
        run(api, "model_info", "me/plain")
