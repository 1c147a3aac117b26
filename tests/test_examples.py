"""The examples: each trains a tiny model for a few steps, saves it, and goes on from what it saved."""

import csv
import importlib
import json
import math
import os
import random
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import errors_of
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_relpos import Shaw
from hf_relpos.cli.errors import CommandError, exit_status
from hf_relpos.config import GATES, NATIVE
from hf_relpos.names import ENGINE_NAMES
from hf_relpos.schemes import SCHEMES

EXAMPLES = Path(__file__).parent.parent / "examples"
WORDS = [f"w{number}" for number in range(20)]
TRAINED_LENGTH = 32


# Tiny models, tiny data, and two ways to run an example
# ------------------------------------------------------


def save_tokenizer(folder: Path, template: str, **special_tokens: str) -> int:
    """Save a tokenizer of whole words, and return its vocabulary size. `template` places [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]", **special_tokens
    ).save_pretrained(folder)
    return len(special) + len(WORDS)


def save_bert(folder: Path, dropout: float, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=save_tokenizer(folder, "[CLS] $A [SEP]", pad_token="[PAD]", cls_token="[CLS]"),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=TRAINED_LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), dropout=0.0)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=save_tokenizer(folder, "$A"),
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=TRAINED_LENGTH,
        bos_token_id=3,
        eos_token_id=3,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=save_tokenizer(folder, "$A [SEP]", pad_token="[PAD]"),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=0,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def write_csv(path: Path, header: list[str], rows: list[tuple]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def order_task(count: int) -> list[tuple[str, str]]:
    """Texts that hold w0 and w1 somewhere, and which of the two stands first: only their order tells."""
    generator = random.Random(count)
    rows = []
    for number in range(count):
        words = ["w2"] * 6
        first, second = sorted(generator.sample(range(6), 2))
        label = ("zero", "one")[number % 2]
        words[first], words[second] = ("w0", "w1") if label == "zero" else ("w1", "w0")
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture
def classification_files(tmp_path) -> str:
    train = write_csv(tmp_path / "train.csv", ["text", "label"], order_task(256))
    validation = write_csv(tmp_path / "validation.csv", ["text", "label"], order_task(30))
    return f"--train_file {train} --validation_file {validation}"


@pytest.fixture
def example(monkeypatch):
    """Import an example by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def run(example, monkeypatch, tmp_path):
    """Run an example in this process: `run("causal_lm", model, output_dir, *more)` returns its metrics."""

    def run(name: str, model: Path, output_dir: Path, *arguments: str) -> dict[str, float]:
        argv = command(name, model, output_dir, tmp_path, *arguments)
        monkeypatch.setattr(sys, "argv", argv)
        return example(name).main()

    return run


def run_fresh(name: str, model: Path, output_dir: Path, tmp_path: Path, *arguments: str) -> dict[str, float]:
    """Run an example in a new process, where nothing but the example itself imports hf_relpos."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    argv = [sys.executable, *command(name, model, output_dir, tmp_path, *arguments)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((output_dir / "all_results.json").read_text())


def command(name: str, model: Path, output_dir: Path, tmp_path: Path, *arguments: str) -> list[str]:
    argv = [
        str(EXAMPLES / f"{name}.py"),
        *shlex.split(f"--model_name_or_path {model} --output_dir {output_dir} --cache_dir {tmp_path / 'cache'}"),
        *shlex.split("--use_cpu --report_to none --disable_tqdm true --save_strategy no"),
        *shlex.split("--lr_scheduler_type constant"),
    ]
    return [*argv, *shlex.split(" ".join(arguments))]


def relpos_weights(folder: Path) -> dict[str, torch.Tensor]:
    weights = load_file(folder / "model.safetensors")
    return {name: weight for name, weight in weights.items() if "relpos" in name}


def saved_relpos(folder: Path) -> dict | None:
    return json.loads((folder / "config.json").read_text()).get("relpos")


def assert_all_trained(folder: Path) -> None:
    """Tables start at 0 and gates at 1: after training no relative parameter is constant at its start."""
    weights = relpos_weights(folder)
    assert weights
    for name, weight in weights.items():
        assert weight.isfinite().all(), name
        assert not torch.all(weight == 0), f"{name} is still at 0"
        assert not torch.all(weight == 1), f"{name} is still at 1"


# Train, save, load, go on
# ------------------------


@pytest.mark.slow
def test_text_classification_learns_order_from_relative_positions_and_reloads(
    run, bert, classification_files, tmp_path
):
    out = tmp_path / "out"
    options = "--schemes shaw --max_distance 4 --native drop"  # without Shaw all orders look alike
    training = "--do_train --max_steps 80 --learning_rate 1e-2 --relpos_lr 1e-2 --per_device_train_batch_size 64"
    metrics = run("text_classification", bert, out, classification_files, options, training, "--do_eval")
    assert metrics["eval_accuracy"] > 0.9
    assert metrics["eval_f1_macro"] > 0.9
    relpos = saved_relpos(out)
    assert relpos["native"] == "drop"
    assert relpos["schemes"][0]["max_distance"] == 4
    assert_all_trained(out)

    model = AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    texts, labels = zip(*order_task(30), strict=True)
    with torch.no_grad():
        logits = model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits
    targets = torch.tensor([model.config.label2id[label] for label in labels])
    predictions = [model.config.id2label[i] for i in logits.argmax(-1).tolist()]
    correct = sum(prediction == label for prediction, label in zip(predictions, labels, strict=True))
    assert correct / len(labels) == pytest.approx(metrics["eval_accuracy"])
    loss = torch.nn.functional.cross_entropy(logits, targets).item()
    assert loss == pytest.approx(metrics["eval_loss"], abs=1e-5)

    test_file = write_csv(tmp_path / "test.csv", ["text"], [(text,) for text in texts])
    again = run_fresh(
        "text_classification",
        out,
        tmp_path / "again",
        tmp_path,
        classification_files,
        f"--test_file {test_file} --do_eval --do_predict",
    )
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-6)
    with open(tmp_path / "again" / "predictions.csv") as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == predictions


@pytest.mark.slow
def test_causal_lm_beyond_trained_length_reports_perplexity_generates_and_reloads(run, gpt2, tmp_path, capsys):
    out, block = tmp_path / "out", TRAINED_LENGTH + 16
    file = tmp_path / "text.txt"
    file.write_text("".join(" ".join(WORDS) + "\n" for _ in range(40)))
    data = f"--train_file {file} --validation_split_percentage 20 --block_size {block}"
    training = "--do_train --max_steps 60 --learning_rate 1e-2 --relpos_lr 1e-2 --per_device_train_batch_size 4"
    options = "--schemes shaw t5 --max_distance 24 --native drop --relpos_gate token"
    prompt = f"--generate 'w3 w4' --generate_tokens {TRAINED_LENGTH}"
    metrics = run("causal_lm", gpt2, out, data, training, options, prompt, "--do_eval")
    text = capsys.readouterr().out.strip().splitlines()[-1].split()
    assert text[:2] == ["w3", "w4"]
    assert len(text) > 2
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(metrics["eval_loss"]))
    assert metrics["eval_perplexity"] < len(WORDS) / 4  # the words always follow in the same order
    assert [scheme["max_distance"] for scheme in saved_relpos(out)["schemes"]] == [24, 24]
    assert saved_relpos(out)["gate"] == "token"
    assert_all_trained(out)

    model = AutoModelForCausalLM.from_pretrained(out).eval()
    tokens = AutoTokenizer.from_pretrained(out)(" ".join(WORDS * 3)[: 6 * block], return_tensors="pt")["input_ids"]
    assert tokens.shape[1] > TRAINED_LENGTH
    with torch.no_grad():
        assert model(tokens, labels=tokens).loss.exp() < len(WORDS) / 4

    again = run_fresh("causal_lm", out, tmp_path / "again", tmp_path, data, "--do_eval")
    assert again["eval_perplexity"] == pytest.approx(metrics["eval_perplexity"], rel=1e-5)


@pytest.mark.parametrize("more", ["", "--schemes none", "--label_smoothing_factor 0.2"])
def test_perplexity_is_that_of_the_predicted_tokens(run, gpt2, tmp_path, more):
    """The first token of a block is never predicted, and a block of three makes the difference large."""
    file = tmp_path / "text.txt"
    file.write_text(" ".join(random.Random(0).choices(WORDS, k=33)) + "\n")
    data = f"--validation_file {file} --block_size 3 --per_device_eval_batch_size 4"  # the last batch is not full
    metrics = run("causal_lm", gpt2, tmp_path / "out", data, "--do_eval", more)
    tokens = AutoTokenizer.from_pretrained(gpt2)(file.read_text(), return_tensors="pt")["input_ids"].view(-1, 3)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(gpt2).eval()(tokens).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)


@pytest.mark.slow
def test_seq2seq_generates_reports_metrics_and_reloads(run, t5, tmp_path):
    out = tmp_path / "out"
    rows = [{"article": " ".join(WORDS[i : i + 5]), "title": " ".join(WORDS[i : i + 2])} for i in range(12)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = f"--train_file {file} --validation_file {file} --test_file {file}"
    columns = "--text_column article --summary_column title --source_prefix 'w19 '"
    data = f"{files} {columns} --predict_with_generate --max_target_length 6 --generation_num_beams 2"
    training = "--do_train --max_steps 150 --learning_rate 1e-2 --relpos_lr 1e-2 --per_device_train_batch_size 12"
    options = "--schemes clipped --max_distance 4 --native gate --relpos_gate head"
    metrics = run("seq2seq", t5, out, data, training, options, "--do_eval --do_predict")
    assert metrics["eval_token_f1"] > 0.5
    relpos = saved_relpos(out)
    assert (relpos["native"], relpos["gate"]) == ("gate", "head")
    assert_all_trained(out)

    model = AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)
    inputs = tokenizer(["w19 " + row["article"] for row in rows], return_tensors="pt")
    tokens = model.generate(inputs["input_ids"], num_beams=2, max_length=7)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    exact = sum(text == row["title"] for text, row in zip(texts, rows, strict=True)) / len(rows)
    assert metrics["eval_exact_match"] == pytest.approx(exact)
    assert (out / "generated_predictions.txt").read_text().splitlines() == texts

    again = run_fresh("seq2seq", out, tmp_path / "again", tmp_path, data, "--do_eval")
    for name in ("eval_loss", "eval_token_f1", "eval_exact_match"):
        assert again[name] == pytest.approx(metrics[name], abs=1e-5)


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_token_classification_learns_what_stands_before_a_word_and_reloads(run, bert, tmp_path):
    """Whether a word follows `w0` no word tells by itself: with the model's positions dropped, the schemes must."""
    draw = random.Random(0)
    texts = [draw.choices(WORDS[:3], k=8) for _ in range(64)]
    tags = [["after" if i and text[i - 1] == "w0" else "other" for i in range(8)] for text in texts]
    file = write_rows(tmp_path / "t.jsonl", [{"w": w, "t": t} for w, t in zip(texts, tags, strict=True)])
    files = f"--train_file {file} --validation_file {file} --test_file {file}"
    data = f"{files} --text_column_name w --label_column_name t --do_eval"
    training = "--do_train --max_steps 60 --learning_rate 1e-2 --relpos_lr 1e-2 --per_device_train_batch_size 32"
    out = tmp_path / "out"
    metrics = run("token_classification", bert, out, data, training, "--do_predict --native drop --max_distance 2")
    assert min(metrics[f"eval_{name}"] for name in ("f1_after", "f1_other", "f1_macro", "accuracy")) > 0.9
    assert metrics["eval_f1_macro"] == pytest.approx((metrics["eval_f1_after"] + metrics["eval_f1_other"]) / 2)
    assert AutoModelForTokenClassification.from_pretrained(out).config.id2label == {0: "after", 1: "other"}
    predicted = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    right = [a == b for row, expected in zip(predicted, tags, strict=True) for a, b in zip(row, expected, strict=True)]
    assert sum(right) / len(right) == pytest.approx(metrics["eval_accuracy"])
    grouped = "--do_predict --train_sampling_strategy group_by_length"
    again = run("token_classification", out, tmp_path / "again", data, grouped)
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], abs=1e-5)
    lines = (tmp_path / "again" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == predicted  # in the order of the rows, whatever the order of training


def test_a_label_belongs_to_the_first_token_of_its_word(example):
    on_first_tokens = example("token_classification").on_first_tokens
    assert on_first_tokens([7, 8, 9], [None, 0, 0, 1, 2, 2, None]) == [-100, 7, -100, 8, 9, -100, -100]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"tokens": ["w1", "w2"], "tags": ["a"]}, "", r"row 1 has \['w1', 'w2'\] and \['a'\]. Mend or leave out such"),
        ({"tokens": ["w1"], "tags": ["b"]}, "--label_column_name t", r"no column 't'.*--label_column_name"),
        ({"tokens": ["w1"], "tags": ["a"]}, "--text_column_name words", r"no column 'words'.*--text_column_name"),
        ({"tokens": ["w1"], "tags": ["a"]}, "--max_train_samples 1", r"has only the label 'a' \(with --max_train"),
        ({"tokens": ["w1"], "tags": ["b"]}, f"--max_seq_length {TRAINED_LENGTH + 1}", "--native drop"),
    ],
)
def test_wrong_rows_of_words_are_refused_before_training(run, bert, tmp_path, row, options, message):
    file = write_rows(tmp_path / "t.jsonl", [{"tokens": ["w1"], "tags": ["a"]}, row])
    with pytest.raises(CommandError, match=message):
        run("token_classification", bert, tmp_path / "out", f"--train_file {file} --do_train", options)
    assert not (tmp_path / "out").exists()


def test_scheme_none_trains_the_plain_model(run, bert, classification_files, tmp_path):
    out = tmp_path / "out"
    run("text_classification", bert, out, classification_files, "--do_train --max_steps 1 --schemes none")
    assert json.loads((out / "config.json").read_text())["model_type"] == "bert"
    assert not relpos_weights(out)


def test_tables_learn_at_their_own_rate(run, bert, classification_files, tmp_path):
    """Adam's first step is as large as the learning rate, whatever the gradient."""
    training = "--do_train --max_steps 1 --lr_scheduler_type constant --learning_rate 1e-4"
    for name, more, expected in (("default", "", 2e-3), ("given", "--relpos_lr 5e-2", 5e-2)):
        run("text_classification", bert, tmp_path / name, classification_files, training, more)
        largest = max(w.abs().max().item() for key, w in relpos_weights(tmp_path / name).items() if "table" in key)
        assert largest == pytest.approx(expected, rel=1e-3)


def test_a_rate_for_tables_that_are_not_there_is_refused(run, bert, classification_files, tmp_path):
    with pytest.raises(ValueError, match=r"--relpos_lr 0.1 has no effect on a model without relative positions"):
        run("text_classification", bert, tmp_path, classification_files, "--do_train --schemes none --relpos_lr 0.1")


def test_a_rate_for_what_learns_nothing_is_refused(run, bert, classification_files, tmp_path):
    options = "--schemes alibi --native keep --relpos_gate none --relpos_lr 0.1"
    with pytest.raises(CommandError, match=r"--relpos_lr 0.1 has no effect on a model whose relative positions learn"):
        run("text_classification", bert, tmp_path / "out", classification_files, "--do_train", options)


def test_classifier_on_gpt2_gets_a_padding_token(run, gpt2, tmp_path):
    rows = [("w1 w2 w3 w4", 0), ("w5", 1), ("w1 w2", 0)]  # of unequal length
    file = write_csv(tmp_path / "data.csv", ["text", "label"], rows)
    metrics = run("text_classification", gpt2, tmp_path, f"--validation_file {file} --do_eval")
    assert metrics["eval_accuracy"] * 3 == pytest.approx(round(metrics["eval_accuracy"] * 3))


def test_bert_as_language_model_does_not_see_the_next_token(run, bert, tmp_path):
    out = tmp_path / "out"
    file = tmp_path / "text.txt"
    file.write_text("".join(" ".join(WORDS) + "\n" for _ in range(4)))
    run(
        "causal_lm",
        bert,
        out,
        f"--train_file {file} --do_train --max_steps 1 --block_size 8 --learning_rate 1e-2",
    )
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    tokens = torch.arange(4, 12)[None]
    changed = tokens.clone()
    changed[0, -1] = 20
    with torch.no_grad():
        torch.testing.assert_close(model(changed).logits[:, :-1], model(tokens).logits[:, :-1])


def test_data_set_folder_with_numbered_labels_and_a_pair_of_texts(run, bert, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [("w8 w9", WORDS[number % 3], number % 3) for number in range(12)]  # only the second text tells
    write_csv(folder / "train.csv", ["first", "second", "class"], rows)
    write_csv(folder / "validation.csv", ["first", "second", "class"], rows)
    write_csv(folder / "test.csv", ["first", "second", "class"], [(*row[:2], -1) for row in rows])
    columns = "--text_column_name first --text_pair_column_name second --label_column_name class"
    out = tmp_path / "out"
    data = f"--dataset_name {folder} {columns} --ignore_mismatched_sizes"
    metrics = run(
        "text_classification",
        bert,
        out,
        data,
        "--do_train --max_steps 60 --learning_rate 1e-2 --relpos_lr 1e-2",
        "--do_eval --do_predict --max_predict_samples 4",
    )
    config = json.loads((out / "config.json").read_text())
    assert config["id2label"] == {"0": "0", "1": "1", "2": "2"}
    assert config["relpos"]["native"] == "gate"  # the documented default
    assert metrics["eval_accuracy"] > 0.5  # without the second text all rows are equal, and it is a third
    assert len((out / "predictions.csv").read_text().splitlines()) == 1 + 4


# Resuming
# --------


def test_resumed_run_ends_at_the_same_weights_as_the_run_that_was_not_stopped(run, classification_files, tmp_path):
    bert = save_bert(tmp_path / "bert", dropout=0.1)
    other_bert = save_bert(tmp_path / "other_bert", dropout=0.1, seed=1)  # all weights are the checkpoint's
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    saving = "--max_steps 4 --save_strategy steps --save_steps 2"
    training = f"{classification_files} --do_train {saving} --schemes shaw"
    run("text_classification", bert, straight, training)
    resumed.mkdir()
    (straight / "checkpoint-2").rename(resumed / "checkpoint-2")
    run("text_classification", other_bert, resumed, training, "--resume_from_checkpoint last")
    expected, actual = load_file(straight / "model.safetensors"), load_file(resumed / "model.safetensors")
    assert expected.keys() == actual.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--schemes shaw --max_distance 3",
            r"'max_distance': 16.*'max_distance': 3.*options of the first run",
        ),
        ("--schemes none", r"'max_distance': 16.*has relpos=None"),  # Trainer itself would only warn
    ],
)
def test_resume_with_other_relative_positions_is_refused(run, bert, classification_files, tmp_path, options, message):
    out = tmp_path / "out"
    training = f"{classification_files} --do_train --save_strategy steps --save_steps 1"
    run("text_classification", bert, out, training, "--max_steps 1 --schemes shaw")
    with pytest.raises(ValueError, match=message):
        run("text_classification", bert, out, training, "--max_steps 2 --resume_from_checkpoint last", options)


def test_resume_without_a_checkpoint_is_refused(run, bert, classification_files, tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        run(
            "text_classification",
            bert,
            tmp_path,
            classification_files,
            "--do_train --resume_from_checkpoint last",
        )


# Arguments
# ---------


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_config_file_says_the_same_as_the_command_line(example, monkeypatch, tmp_path, suffix):
    import yaml

    relpos_arguments, arguments = example("relpos_arguments"), example("arguments")
    types = (arguments.ModelArguments, arguments.DataArguments, relpos_arguments.RelPosArguments)
    values = {"model_name_or_path": "m", "train_file": "t.csv", "schemes": ["shaw", "t5"], "max_distance": 5}
    file = tmp_path / f"arguments.{suffix}"
    file.write_text(json.dumps(values) if suffix == "json" else yaml.safe_dump(values))
    monkeypatch.setattr(sys, "argv", ["example.py", str(file)])
    from_file = arguments.parse_arguments(*types)
    line = shlex.split("--model_name_or_path m --train_file t.csv --schemes shaw t5 --max_distance 5")
    monkeypatch.setattr(sys, "argv", ["example.py", *line])
    assert from_file == arguments.parse_arguments(*types)
    assert from_file[2].given() == {"schemes": ["shaw", "t5"], "max_distance": 5}


def test_options_reach_the_configuration(example):
    arguments = example("relpos_arguments").RelPosArguments
    config = arguments(
        schemes=["shaw", "clipped"], max_distance=7, native="drop", relpos_gate="token", engine="blockwise"
    ).to_config()
    assert [type(scheme).__name__ for scheme in config.schemes] == ["Shaw", "ClippedBias"]
    assert [scheme.max_distance for scheme in config.schemes] == [7, 7]
    assert (config.native, config.gate, config.engine) == ("drop", "token", "blockwise")
    config = arguments().to_config()
    assert [(type(scheme).__name__, scheme.max_distance) for scheme in config.schemes] == [("Shaw", 16)]
    assert (config.native, config.gate, config.engine) == ("gate", "head", "auto")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schemes": "shaww"}, "--schemes shaww is not known: choose from shaw, t5, clipped, .*none"),
        ({"native": "lose"}, "--native lose is not known: choose from keep, gate, drop"),
        ({"relpos_gate": "layer"}, "--relpos_gate layer is not known: choose from none, head, token"),
        ({"engine": "warp"}, "--engine warp is not known: choose from auto, .*blockwise"),
        ({"schemes": ["none", "shaw"]}, "--schemes none shaw. Leave out"),
        ({"schemes": ["none"], "max_distance": 3}, "--schemes none --max_distance 3. Leave out"),
    ],
)
def test_wrong_relative_options_are_named(example, values, message):
    with pytest.raises(ValueError, match=message):
        example("relpos_arguments").RelPosArguments(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "No data: give --dataset_name, or --train_file"),
        (
            {"dataset_name": "d", "train_file": "t.csv"},
            r"--dataset_name d and files \(t.csv\).*one or the other",
        ),
        ({"train_file": "t.docx"}, r"t.docx: expected a file that ends in .csv, .json, .jsonl"),
        ({"train_file": "t.csv", "validation_split_percentage": 100}, "100 is not between 0 and 100"),
        (
            {"train_file": "t.csv", "validation_file": "v.csv", "validation_split_percentage": 5},
            "--validation_file or --validation_split_percentage, not both",
        ),
    ],
)
def test_wrong_data_options_are_named(example, values, message):
    with pytest.raises(ValueError, match=message):
        example("arguments").DataArguments(**values)


@pytest.fixture
def refusal(run, tmp_path, capsys):
    """What an example says that cannot do what it is asked to: one line, with status 2, and nothing is written."""

    def refusal(name: str, model: Path, *arguments: str) -> str:
        out = tmp_path / "out"
        try:
            status = exit_status(f"{name}.py", lambda: run(name, model, out, *arguments))
        except SystemExit as stopped:  # by the parser
            status = stopped.code
        assert status == 2
        said = capsys.readouterr().err.rpartition(f"{name}.py: error: ")[2]
        assert said.count("\n") == 1
        assert not out.exists()
        return said

    return refusal


@pytest.mark.parametrize(
    ("name", "option", "allowed"),
    [
        ("text_classification", "--max_train_samples 0", "a whole number of at least 1"),
        ("text_classification", "--max_eval_samples -1", "a whole number of at least 1"),
        ("text_classification", "--max_predict_samples -1", "a whole number of at least 1"),
        ("text_classification", "--max_seq_length 0", "a whole number of at least 1"),
        ("text_classification", "--preprocessing_num_workers 0", "a whole number of at least 1"),
        ("causal_lm", "--block_size 1", "a whole number of at least 2"),
        ("causal_lm", "--generate_tokens 0", "a whole number of at least 1"),
        ("causal_lm", "--seed -1", "a whole number from 0 to 4294967295"),
        ("causal_lm", "--data_seed 4294967296", "a whole number from 0 to 4294967295"),
        ("causal_lm", "--max_steps 0", "a whole number of at least 1"),
        ("causal_lm", "--num_train_epochs 0.0", "a finite number above 0"),
        ("causal_lm", "--per_device_train_batch_size 0", "a whole number of at least 1"),
        ("causal_lm", "--gradient_accumulation_steps 0", "a whole number of at least 1"),
        ("causal_lm", "--learning_rate nan", "a finite number of at least 0"),
        ("causal_lm", "--weight_decay -0.1", "a finite number of at least 0"),
        ("causal_lm", "--relpos_lr inf", "a finite number of at least 0"),
        ("causal_lm", "--adam_beta2 1.0", "a number of at least 0 and below 1"),
        ("seq2seq", "--max_source_length 0", "a whole number of at least 1"),
        ("seq2seq", "--max_target_length -2", "a whole number of at least 1"),
        ("seq2seq", "--generation_num_beams 0", "a whole number of at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_named_with_those_that_can(refusal, tmp_path, name, option, allowed):
    said = refusal(name, tmp_path, "--train_file t.csv --do_train", option)
    assert said == f"{option} was given, but it must be {allowed}.\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--learning_rate many", "argument --learning_rate/--learning-rate: invalid float value: 'many'"),
        ("--native lose", "argument --native: invalid choice: 'lose' (choose from 'keep', 'gate', 'drop')"),
        ("--no_such_option 3", "'--no_such_option', '3'"),
        ("--bf16 --fp16", "At most one of fp16 and bf16 can be True"),
        ("--cache_dir {file}", "--cache_dir {file} is a file. Give a folder."),
        ("--output_dir {file}", "--output_dir {file}: {file} is a file. Give a folder."),
        ("--output_dir {file}/run/1", "{file} is a file. Give a folder."),
    ],
)
def test_what_the_parser_cannot_take_is_one_line_without_the_list_of_all_options(refusal, tmp_path, option, message):
    file = tmp_path / "taken"
    file.write_text("mine")
    said = refusal("causal_lm", tmp_path, "--train_file t.csv --do_train", option.format(file=file))
    assert message.format(file=file) in said
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "it cannot be read: No such file"),
        ("broken.json", "{", "it is no JSON: Expecting property name"),
        ("broken.yaml", "a: [", "it is no YAML: while parsing"),
        ("list.yaml", "- a", "it must hold options and their values"),
        ("few.json", "{}", "model_name_or_path"),
        ("more.json", '{"model_name_or_path": "m", "train_file": "t.csv", "spin": 3}', "['spin']"),
        (
            "number.yaml",
            "{model_name_or_path: m, train_file: t.csv, learning_rate: 1e-4}",
            "--learning_rate 1e-4 was given, but it must be a finite number of at least 0",
        ),
    ],
)
def test_a_file_of_arguments_that_cannot_be_used_is_named(
    example, monkeypatch, tmp_path, capsys, name, content, message
):
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(sys, "argv", ["causal_lm.py", str(file)])
    with pytest.raises(SystemExit) as stopped:
        example("causal_lm").main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"causal_lm.py: error: {file}: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("example_name", ["text_classification", "causal_lm", "seq2seq"])
@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        ("csv", b"", "is empty"),
        ("csv", b"text,label,summary\n", "has no rows: its first line is taken"),
        ("jsonl", b"\x93NUMPY\x01\x00", "is not text in UTF-8"),
        ("json", '["caf\u00e9"]'.encode("latin-1"), "is not text in UTF-8: byte 5 is 0xe9"),
        ("csv", b"w1,w2\nw3,w4\n", "has no column 'text': choose from ['w1', 'w2']"),
        ("csv", None, "does not exist"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_their_option(
    refusal, request, tmp_path, example_name, ending, content, message
):
    model = request.getfixturevalue({"text_classification": "bert", "causal_lm": "gpt2", "seq2seq": "t5"}[example_name])
    file = tmp_path / f"data.{ending}"
    if content is not None:
        file.write_bytes(content)
    said = refusal(example_name, model, f"--train_file {file} --do_train")
    assert said.startswith(f"--train_file {file} {message}")


def test_a_text_file_in_another_encoding_is_refused(refusal, gpt2, tmp_path):
    (tmp_path / "book.txt").write_bytes("w1 caf\u00e9 w2".encode("latin-1"))
    said = refusal("causal_lm", gpt2, f"--train_file {tmp_path / 'book.txt'} --do_train")
    assert f"--train_file {tmp_path / 'book.txt'} is not text in UTF-8: byte 6 is 0xe9" in said


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("{tmp}/none", "", "--model_name_or_path {tmp}/none does not exist"),
        ("{bert}", "--tokenizer_name {tmp}/none", "--tokenizer_name {tmp}/none does not exist"),
        ("{bert}", "--max_distance 0", "`max_distance` is 0, but must be a whole number of at least 1"),
        (
            "{bert}",
            "--validation_split_percentage 99",
            "--validation_split_percentage 99.0 cannot be taken from the 2 rows of",
        ),
    ],
)
def test_what_cannot_be_loaded_or_patched_or_divided_is_one_line(refusal, bert, tmp_path, model, options, message):
    file = write_csv(tmp_path / "train.csv", ["text", "label"], [("w1", "a"), ("w2", "b")])
    model, options, message = (text.format(tmp=tmp_path, bert=bert) for text in (model, options, message))
    assert message in refusal("text_classification", model, f"--train_file {file} --do_train {options}")


@pytest.mark.parametrize("labels", [["a", "a"], [3, 3]])
def test_a_single_class_is_refused(refusal, bert, tmp_path, labels):
    """Transformers would take it for a regression, and train it to a loss of 0."""
    file = write_csv(tmp_path / "train.csv", ["text", "label"], [("w1", labels[0]), ("w2", labels[1])])
    said = refusal("text_classification", bert, f"--train_file {file} --do_train")
    assert f"--train_file {file} has only the label '{labels[0]}': there is nothing to tell apart" in said


def test_a_model_with_a_single_output_is_refused(refusal, bert, tmp_path):
    BertForSequenceClassification.from_pretrained(bert, num_labels=1, ignore_mismatched_sizes=True).save_pretrained(
        tmp_path / "regression"
    )
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "regression")
    file = write_csv(tmp_path / "data.csv", ["text", "label"], [("w1", 0), ("w2", 0)])
    said = refusal("text_classification", tmp_path / "regression", f"--validation_file {file} --do_eval")
    assert "The model has a single output, as for a regression" in said


def test_what_a_checkpoint_was_trained_for_does_not_decide_how_classes_are_learned(run, bert, tmp_path):
    """With labels 0 and 1 a model of that kind would be trained by squared error, or by one loss per class."""
    file = write_csv(tmp_path / "data.csv", ["text", "label"], [("w1 w2", 0), ("w3", 1)])
    losses = []
    for problem in ("regression", "single_label_classification"):
        model = BertForSequenceClassification.from_pretrained(bert, problem_type=problem)
        model.save_pretrained(tmp_path / problem)
        AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / problem)
        data = f"--validation_file {file} --do_eval"
        losses.append(run("text_classification", tmp_path / problem, tmp_path / "out", data)["eval_loss"])
    assert losses[0] == losses[1]


def test_ctrl_c_ends_an_example_in_one_line_with_status_130(
    run, bert, classification_files, tmp_path, monkeypatch, capsys
):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.Trainer.train", interrupt)
    call = lambda: run("text_classification", bert, tmp_path / "out", classification_files, "--do_train")  # noqa: E731
    assert exit_status("text_classification.py", call) == 130
    assert capsys.readouterr().err.endswith("\ntext_classification.py: interrupted.\n")


@pytest.mark.parametrize("name", ["text_classification", "token_classification", "causal_lm", "seq2seq"])
def test_each_script_ends_with_the_status_of_its_run(name, example, monkeypatch, capsys):
    """What `python <script>.py` does: a line and the status, and no traceback."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--model_name_or_path", "m", "--train_file", "t.csv"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert stopped.value.code == 2
    assert f"{name}.py: error: Nothing to do: give one or several of --do_train" in capsys.readouterr().err


def test_choices_are_those_that_are_registered(example, monkeypatch, capsys):
    """Also those of a package that is imported later than the example."""
    arguments, relpos_arguments = example("arguments"), example("relpos_arguments")
    monkeypatch.setitem(SCHEMES, "spiral", Shaw)
    monkeypatch.setattr(sys, "argv", ["example.py", "--schemes", "spiral", "shaw"])
    (parsed,) = arguments.parse_arguments(relpos_arguments.RelPosArguments)
    assert parsed.to_config().schemes == (Shaw(), Shaw())
    monkeypatch.setattr(sys, "argv", ["example.py", "--schemes", "helix"])
    with pytest.raises(SystemExit):
        arguments.parse_arguments(relpos_arguments.RelPosArguments)
    said = capsys.readouterr().err
    for choice in (*SCHEMES, "none"):
        assert repr(choice) in said
    assert (relpos_arguments.CHOICES["native"], relpos_arguments.CHOICES["relpos_gate"]) == (NATIVE, GATES)
    assert relpos_arguments.CHOICES["engine"] == ENGINE_NAMES


# Model cards
# -----------


def card_of(folder: Path) -> tuple[str, ModelCard]:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert errors_of(text) == []
    return text, ModelCard(text)


def test_the_card_of_a_classifier_has_the_results_the_data_and_the_settings_of_the_run(
    run, bert, classification_files, tmp_path
):
    out = tmp_path / "out"
    options = "--max_train_samples 40 --max_seq_length 12 --learning_rate 3e-3 --per_device_train_batch_size 5 --seed 7"
    metrics = run("text_classification", bert, out, classification_files, "--do_train --max_steps 2 --do_eval", options)
    text, card = card_of(out)
    assert "Measured on validation.csv." in text
    assert f"| accuracy | {metrics['eval_accuracy']:.4f} |" in text
    assert f"| loss | {metrics['eval_loss']:.4f} |" in text
    for row in (
        "training data | train.csv, 40 rows",
        "validation data | validation.csv, 30 rows",
        "tokens per text | up to 12",
        "peak learning rate of tables and gates | 0.0600",
        "learning_rate | 0.0030",
        "train_batch_size | 5",
        "seed | 7",
        "training_steps | 2",
    ):
        assert f"| {row} |" in text
    assert str(tmp_path) not in text
    assert {result.metric_name: result.metric_value for result in card.data.eval_results} == {
        "accuracy": metrics["eval_accuracy"],
        "macro-F1": metrics["eval_f1_macro"],
        "loss": metrics["eval_loss"],
    }

    # The next run into the same folder has its own numbers; what somebody has written stays.
    run("text_classification", bert, out, classification_files, "--do_train --max_steps 1 --seed 8")
    text, _ = card_of(out)
    assert "| seed | 8 |" in text
    assert "None were given for this model." in text
    (out / "README.md").write_text("# Mine\n")
    run("text_classification", bert, out, classification_files, "--do_train --max_steps 1")
    assert (out / "README.md").read_text().endswith("# Mine\n")


def test_the_card_of_a_language_model_has_its_perplexity(run, gpt2, tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("".join(" ".join(WORDS) + "\n" for _ in range(10)))
    data = f"--train_file {file} --validation_split_percentage 20 --block_size 8"
    metrics = run("causal_lm", gpt2, tmp_path / "out", data, "--do_train --max_steps 1 --do_eval")
    text, _ = card_of(tmp_path / "out")
    assert f"| perplexity | {metrics['eval_perplexity']:.4f} |" in text
    assert "| training data | book.txt, 8 rows |" in text
    assert "| validation data | book.txt, 2 rows |" in text
    assert "| tokens per block | 8 |" in text


def test_the_card_of_a_plain_model_is_the_trainers(run, bert, classification_files, tmp_path):
    run("text_classification", bert, tmp_path, classification_files, "--do_train --max_steps 1 --schemes none")
    text = (tmp_path / "README.md").read_text()
    assert "on the train.csv dataset" in text
    assert "hf_relpos" not in text


def test_nothing_is_written_about_a_model_that_was_not_trained(run, bert, tmp_path):
    file = write_csv(tmp_path / "data.csv", ["text", "label"], [("w1", 0), ("w2", 1)])
    run("text_classification", bert, tmp_path / "out", f"--validation_file {file} --do_eval")
    assert not (tmp_path / "out" / "README.md").exists()


def test_text_files_are_for_the_language_model_only(example):
    assert example("causal_lm").LanguageModelDataArguments(train_file="t.txt").files == {"train": "t.txt"}
    with pytest.raises(ValueError, match="expected a file that ends in"):
        example("text_classification").ClassificationDataArguments(train_file="t.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "Nothing to do: give one or several of --do_train"),
        (
            "--do_predict",
            "--do_predict needs test data; there is: train, validation. Please give --test_file",
        ),
        (
            "--do_train --text_column_name body",
            r"--train_file \S+train.csv has no column 'body'.*\['text', 'label'\] with --text_column_name",
        ),
        (
            "--do_train --label_column_name topic",
            r"--train_file \S+train.csv has no column 'topic'.*\['text', 'label'\] with --label_column",
        ),
        ("--do_eval", r"--validation_file \S+ has labels that the model does not: \['one', 'zero'\].*LABEL_0"),
        ("--do_train --max_seq_length 2", "--max_seq_length 2: 2 of them are special tokens, so no text would be left"),
        ("--do_train --max_train_samples 1", r"has only the label 'zero' \(with --max_train_samples 1\)"),
        ("--do_train --resume_from_checkpoint {data}", "--resume_from_checkpoint .* has no trainer_state.json"),
        (
            f"--do_train --max_seq_length {TRAINED_LENGTH + 1}",
            f"--max_seq_length {TRAINED_LENGTH + 1}.*more than the {TRAINED_LENGTH} positions.*--native drop",
        ),
    ],
)
def test_wrong_classification_runs_are_refused_before_training(
    run, bert, classification_files, tmp_path, options, message
):
    with pytest.raises(CommandError, match=message):
        run(
            "text_classification",
            bert,
            tmp_path / "out",
            classification_files,
            options.replace("{data}", str(tmp_path)),
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"--do_train --block_size {TRAINED_LENGTH + 1}", "--block_size.*--native drop"),
        (f"--do_train --generate w1 --generate_tokens {TRAINED_LENGTH}", "--generate_tokens.*--native drop"),
        ("--do_train --generate ''", "has no tokens"),
        ("--do_train", f"fewer tokens than one block of {TRAINED_LENGTH}"),
        ("--do_predict --test_file {file}", "--do_predict has no meaning for a language model"),
        ("--do_eval", "--do_eval needs validation data; there is: train.*--validation_split_percentage"),
    ],
)
def test_wrong_language_model_runs_are_refused_before_training(run, gpt2, tmp_path, options, message):
    file = tmp_path / "text.txt"
    file.write_text("w1 w2\n")
    with pytest.raises(CommandError, match=message):
        run("causal_lm", gpt2, tmp_path / "out", f"--train_file {file}", options.replace("{file}", str(file)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--max_source_length 1", "--max_target_length 1"])
def test_texts_cut_off_to_nothing_are_refused(run, t5, tmp_path, option):
    file = write_csv(tmp_path / "pairs.csv", ["text", "summary"], [("w1 w2", "w1")])
    with pytest.raises(CommandError, match=f"{option}: 1 of them are special tokens, so no text would be left"):
        run("seq2seq", t5, tmp_path / "out", f"--train_file {file} --do_train", option)


def test_a_classifier_for_another_number_of_labels_is_replaced_only_on_request(run, bert, tmp_path):
    model = BertForSequenceClassification.from_pretrained(bert, num_labels=4, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path / "four")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "four")
    data = f"--train_file {write_csv(tmp_path / 'data.csv', ['text', 'label'], order_task(4))} --do_train --max_steps 1"
    with pytest.raises(CommandError, match=r"was trained for 4 labels, and the data has 2.*--ignore_mismatched_sizes"):
        run("text_classification", tmp_path / "four", tmp_path / "out", data)
    run("text_classification", tmp_path / "four", tmp_path / "out", data, "--ignore_mismatched_sizes")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == {"0": "one", "1": "zero"}


def test_prediction_without_generation_is_refused(run, t5, tmp_path):
    with pytest.raises(ValueError, match="give --predict_with_generate too"):
        run("seq2seq", t5, tmp_path / "out", "--test_file t.csv --do_predict")


def test_rows_without_text_are_named(run, bert, tmp_path):
    file = write_csv(tmp_path / "train.csv", ["text", "label"], [("w1", "a"), ("", "b"), ("w3", "b")])
    with pytest.raises(CommandError, match=r"train.csv: column 'text' must hold text, but row 1 has None.*1 in all"):
        run("text_classification", bert, tmp_path / "out", f"--train_file {file} --do_train")


def test_options_for_a_patched_checkpoint_are_refused(run, bert, classification_files, tmp_path):
    out = tmp_path / "out"
    training = f"{classification_files} --do_train --max_steps 1"
    run("text_classification", bert, out, training, "--schemes shaw")
    with pytest.raises(ValueError, match="'--max_distance 4 --native drop' would have no effect"):
        run("text_classification", out, tmp_path / "again", training, "--max_distance 4 --native drop")
    before = relpos_weights(out)
    run("text_classification", out, tmp_path / "again", training)
    after = relpos_weights(tmp_path / "again")
    assert saved_relpos(tmp_path / "again") == saved_relpos(out)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


# Small parts
# -----------


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [("a b", "b a", 1), ("a a b", "a c", 0.4), ("a", "b", 0), ("", "a", 0), ("", "", 1)],
)
def test_token_f1(example, prediction, reference, expected):
    assert example("seq2seq").token_f1(prediction, reference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("id2label", "labels", "names", "known"),
    [
        ({0: "neg", 1: "pos"}, None, ["neg", "pos"], {"0": 0, "1": 1, "neg": 0, "pos": 1}),
        ({0: "neg", 1: "pos"}, ["pos", "neg"], ["neg", "pos"], {"0": 0, "1": 1, "neg": 0, "pos": 1}),
        ({0: "LABEL_0", 1: "LABEL_1"}, ["b", "a", "b"], ["a", "b"], {"a": 0, "b": 1}),
        ({0: "LABEL_0", 1: "LABEL_1"}, ["10", "9", "2"], ["2", "9", "10"], {"2": 0, "9": 1, "10": 2}),
        ({0: "1", 1: "0"}, ["0", "1"], ["1", "0"], {"1": 0, "0": 1}),
    ],
)
def test_labels_keep_the_order_of_the_checkpoint_where_it_knows_them(example, id2label, labels, names, known):
    config = BertConfig(id2label=id2label)
    assert example("labels").choose_classes(labels, config) == (names, known)


def test_every_example_is_tried_here():
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    assert scripts == {"text_classification", "token_classification", "causal_lm", "seq2seq"}
