"""The benchmarks measure what they say, refuse to time what is wrong, and the page made from their results is kept."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    attention,
    decoding,
    gpu_check,
    load,
    long,
    long_report,
    models,
    parts,
    peers,
    problems,
    report,
    rounds,
    step_memory,
    training_step,
)

CPU = torch.device("cpu")
BOTH = attention.PASSES[1]


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer and few tokens, so that a step is quick."""
    monkeypatch.setattr(models, "VOCABULARY", 100)
    for module in (training_step, decoding):
        monkeypatch.setattr(module, "unpatched", partial(models.unpatched, layers=1))
        monkeypatch.setattr(module, "patched", partial(models.patched, layers=1))
    monkeypatch.setattr(decoding, "VOCABULARY", 100)
    for module in (training_step, attention):
        monkeypatch.setattr(module, "TOKENS", 16)


# The kept results and the page


def test_the_performance_page_is_what_the_kept_results_make():
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == report.page()


def test_every_kept_result_says_on_what_it_was_measured():
    files = list((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    assert {path.stem for path in files} <= {*report.SECTIONS, *long_report.SECTIONS}
    for path in files:
        record = json.loads(path.read_text(encoding="utf-8"))
        for measured in record.get("parts", [record]):
            assert measured["date"]
            assert measured["hardware"]["cpu"]
            assert measured["versions"]["torch"]


def test_the_page_needs_no_result_in_particular(tmp_path: Path):
    assert report.page(tmp_path) == report.HEAD + "\n" + report.LIMITS.strip() + "\n"


def page_of(name: str, folder: Path, of: dict, rows: list[dict]) -> list[str]:
    """The lines of a page whose only result is one part."""
    parts.write_parts(name, [parts.part(of, rows)], folder)
    return report.page(folder).splitlines()


def test_the_page_marks_what_is_slower_than_asked_for(tmp_path: Path):
    of = {"family": "bert", "length": 512, "padding": False, "dropout": 0.0, "engine": "auto"}
    rows = [
        {"model": models.UNPATCHED, "seconds": 2.0, "ratio": 1.0},
        {"model": "fast", "seconds": 2.06, "ratio": 1.03},
        {"model": "slow", "seconds": 2.08, "ratio": 1.04},
    ]
    lines = page_of("training_step", tmp_path, of, rows)
    assert "| unpatched, sdpa | 2 s |" in lines
    assert "| fast | 1.03 |" in lines
    assert "| slow | **1.04** |" in lines
    assert "| asked for: at most | 1.03 |" in lines
    lines = page_of("training_step", tmp_path, {**of, "family": "gpt2", "dropout": 0.1}, rows)
    assert "| gpt2, dropout 0.1 | 512 |" in lines
    assert "| asked for: at most | 0.95 |" in lines


def test_the_page_asks_more_of_a_long_t5(tmp_path: Path):
    rows = [{"model": models.UNPATCHED, "seconds": 2.0, "ratio": 1.0}, {"model": "p", "seconds": 1.0, "ratio": 0.5}]
    of = {"family": "t5", "padding": False, "dropout": 0.0, "engine": "auto"}
    both = [parts.part({**of, "length": length}, rows) for length in (4096, 512)]
    parts.write_parts("training_step", both, tmp_path)
    assert "| p | 0.50 | **0.50** |" in report.page(tmp_path).splitlines()


@pytest.mark.parametrize(
    ("scheme", "direction", "load", "most"),
    [
        ("Shaw(16)", "both", 0, 1.10), ("T5Bias()", "both", 0, 1.0), ("Shaw(16)", "causal", 0, 0.85),
        ("T5Bias()", "causal", 2, 1.5),
    ],
)  # fmt: skip
def test_the_page_marks_attention_that_is_slower_than_asked_for(
    scheme: str, direction: str, load: int, most: float, tmp_path: Path
):
    of = {
        "scheme": scheme,
        "direction": direction,
        "pass": "forward",
        "length": 512,
        **({"load": load} if load else {}),
    }
    names = (attention.PLAIN, "auto", "fused", "eager")
    ratios = (1.0, most, most + 0.01, most + 0.01)
    rows = [{"contestant": name, "seconds": 1.0, "ratio": ratio} for name, ratio in zip(names, ratios, strict=True)]
    lines = page_of("attention", tmp_path, of, rows)
    assert f"| auto | {most:.2f} |" in lines
    assert f"| fused | **{most + 0.01:.2f}** |" in lines
    assert f"| eager | {most + 0.01:.2f} |" in lines
    assert any("beside 2 busy processes" in line for line in lines) == (load == 2)


def test_processes_are_busy_while_it_is_entered_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen] = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(load.subprocess, "Popen", Popen)
    with load.busy(2):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.returncode is not None for process in started)


def test_the_page_says_why_a_contestant_was_left_out(tmp_path: Path):
    of = {"scheme": "Shaw(16)", "direction": "causal", "pass": "forward", "length": 128}
    rows = [
        {"contestant": attention.PLAIN, "seconds": 0.02, "ratio": 1.0},
        {"contestant": "a", "seconds": 0.03, "ratio": 1.5},
        {"contestant": "b", "skipped": "needs 9 GiB", "why": "memory"},
        {"contestant": "c", "skipped": "is for a bias", "why": "case"},
    ]
    lines = page_of("attention", tmp_path, of, rows)
    assert "| Shaw(16), causal, forward | 128 |" in lines
    for line in ("| plain, sdpa | 20 ms |", "| a | 1.50 |", "| b | (memory) |", "- c: is for a bias"):
        assert line in lines
    assert not any(line.startswith("| c ") for line in lines)


def test_the_page_shows_decoding_memory_and_long_inputs(tmp_path: Path):
    rows = [{"model": models.UNPATCHED, "tokens_per_second": 99.6, "ratio": 1.0},
            {"model": "p", "tokens_per_second": 90.0, "ratio": 0.9}]  # fmt: skip
    assert "| p | 90 | **0.90** |" in page_of("decoding", tmp_path, {"tokens": 8}, rows)
    rows = [{"model": models.UNPATCHED, "added_mib": 100.2, "ratio": 1.0},
            {"model": "p", "added_mib": 120.4, "ratio": 1.2}]  # fmt: skip
    of = {"family": "bert", "length": 64, "layers": 1}
    assert "| p | 120 (**1.20**) |" in page_of("step_memory", tmp_path, of, rows)
    rows = [{"form": "f", "length": 8, "peak_mib": 3.5, "fits": False}]
    assert "| f | 8 | 3.5 | **no** |" in page_of("long", tmp_path, {"what": "budget", "budget_mib": 3}, rows)
    rows = [{"family": "bert", "model": "p", "window": 4, "seconds": 1.5, "added_mib": 7.0, "loss": 2.0}]
    lines = page_of("long", tmp_path, {"what": "train", "length": 64}, rows)
    assert "| bert, p | 4 | 7.0 |" in lines
    assert "| f | 8 | 3.5 | **no** |" in lines
    rows = [{"window": None, "seconds": 6.0, "ratio": 1.0}, {"window": 4, "seconds": 1.2, "ratio": 0.2}]
    lines = page_of("long", tmp_path, {"what": "window", "length": 64}, rows)
    assert "| none | 6 s | 1.00 |" in lines
    assert "| 4 | 1.2 s | **0.20** |" in lines


def test_the_page_shows_what_a_gpu_did_and_what_was_wrong(tmp_path: Path):
    made = parts.part({"what": "correctness"}, [
        {"engine": "e", "case": "c", "dtype": "float32", "times_tolerance": 0.5, "right": True},
        {"engine": "f", "case": "c", "dtype": "float32", "times_tolerance": 50.0, "right": False},
    ])  # fmt: skip
    parts.write_parts("gpu_check", [parts.with_gpu(made, "Some GPU", "12.8")], tmp_path)
    page = report.page(tmp_path)
    assert "2 cases, 1 of them wrong:" in page
    assert "| f | c | float32 | 5.0e+01 |" in page
    assert "Some GPU" in page


# Rounds and parts


def test_contestants_take_turns():
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    times = rounds.take_turns(runs, seconds=0)
    assert order == ["a", "b"] * (1 + rounds.LEAST_ROUNDS)
    assert times == {"a": [3, 5, 7], "b": [4, 6, 8]}


def test_a_ratio_is_that_of_the_medians():
    rows = rounds.summary({"base": [1.0, 2.0, 100.0], "other": [3.0, 3.0, 0.1]}, "base")
    assert rows["base"] == {"rounds": 3, "seconds": 2.0, "ratio": 1.0}
    assert rows["other"] == {"rounds": 3, "seconds": 3.0, "ratio": 1.5}


def test_a_part_can_be_measured_again_without_losing_the_others(tmp_path: Path):
    def of(length: int, seconds: int) -> parts.Part:
        return parts.part({"family": "bert", "length": length}, [{"seconds": seconds}], threads=2)

    parts.write_parts("some", [of(1, 10), of(2, 20)], tmp_path)
    path = parts.write_parts("some", [of(1, 11), of(3, 30)], tmp_path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["benchmark"] == "some"
    assert [(each["of"]["length"], each["results"][0]["seconds"]) for each in kept["parts"]] == [
        (1, 11),
        (2, 20),
        (3, 30),
    ]
    assert all(each["threads"] == 2 and each["versions"]["torch"] for each in kept["parts"])


def test_a_file_that_is_not_made_of_parts_is_not_overwritten(tmp_path: Path):
    (tmp_path / "some.json").write_text('{"results": []}', encoding="utf-8")
    with pytest.raises(ValueError, match="not made of parts"):
        parts.write_parts("some", [parts.part({}, [])], tmp_path)
    assert (tmp_path / "some.json").read_text(encoding="utf-8") == '{"results": []}'


# Training steps


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.usefixtures("small_models")
def test_a_training_step_is_compared_with_the_unpatched_model(family: str):
    rows = training_step.measure(family, 8, seconds=0, padding=True, dropout=0.1)
    assert [row["model"] for row in rows] == [models.UNPATCHED, *models.PATCHES[family]]
    assert rows[0]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["rounds"] >= 3 and row["batch"] == 2 for row in rows)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_padding_hides_up_to_half_of_a_sequence(family: str):
    batch = models.batch_of(family, 20, 64, padding=True)
    lengths = batch["attention_mask"].sum(1)
    assert lengths.min() >= 10
    assert lengths.max() <= 20
    assert len(lengths.unique()) > 5
    filled = torch.arange(20) < lengths[:, None]
    assert filled.equal(batch["attention_mask"].bool())
    assert (batch["labels"] == -100).equal(~filled)
    again = models.batch_of(family, 20, 64, padding=True)
    assert all(batch[name].equal(again[name]) for name in batch)
    assert "attention_mask" not in models.batch_of(family, 20, 4)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_dropout_is_that_of_the_attention_weights_only(family: str):
    batch = models.batch_of(family, 8, 1)
    losses = {}
    for dropout in (0.0, 0.5):
        model = models.unpatched(family, 8, dropout, layers=1)
        active = {name for name, module in model.named_modules()
                  if isinstance(module, torch.nn.Dropout) and module.p > 0}  # fmt: skip
        # BERT and T5 keep the number itself, GPT-2 a module of that name.
        assert active <= {f"transformer.h.{layer}.attn.attn_dropout" for layer in range(1)} | {
            "bert.encoder.layer.0.attention.self.dropout"
        }
        losses[dropout] = {model(**batch).loss.item() for _ in range(3)}
    assert len(losses[0.0]) == 1
    assert len(losses[0.5]) == 3


@pytest.mark.parametrize("family", models.FAMILIES)
def test_equal_arguments_give_equal_models(family: str):
    first, second = (models.unpatched(family, 8, layers=1).state_dict() for _ in range(2))
    assert all(first[name].equal(second[name]) for name in first)
    patch = next(iter(models.PATCHES[family]))
    patched = models.patched(family, patch, 8, layers=1, window=3)
    assert patched.config.relpos["window"] == 3
    assert all(tensor.equal(first[name]) for name, tensor in patched.state_dict().items() if name in first)


def test_the_memory_of_a_step_is_what_the_step_adds():
    row = step_memory.measure("bert", "Shaw(16)", 32, layers=1, threads=1, window=8)
    assert row["model"] == "Shaw(16)"
    assert 30 < row["added_mib"] < 1000  # the gradients of 13.5 million weights are 52 MiB, some of them reused
    assert row["loss"] > 0
    assert step_memory.child({"list": True}) == {family: list(patches) for family, patches in models.PATCHES.items()}


# Attention


COMPARED = [name for name in peers.PEERS if name != "FlexAttention, compiled"]  # which has a test of its own


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scheme", ["Shaw(16)", "T5Bias()", "ClippedBias(128)"])
def test_peers_compute_what_the_engines_compute(scheme: str, causal: bool):
    taken = {}
    for name in COMPARED:
        off = attention.difference(attention.contestants()[name], scheme, causal, "cpu", backward=True)
        if off is not None:
            taken[name] = off
    assert all(off <= 1 for off in taken.values()), taken
    expected = {
        "Shaw(16)": {"gather/scatter", "vector per pair (Transformers 4)"},
        "T5Bias()": {"gather/scatter", "stock T5, sdpa", "x-transformers"},
        "ClippedBias(128)": {"gather/scatter", "dense mask, sdpa"},
    }[scheme]
    if peers.importlib.util.find_spec("x_transformers") is None:
        expected -= {"x-transformers"}
    assert set(taken) == expected


@pytest.mark.skipif(peers.compiler() is None, reason="there is no C++ compiler")
def test_flex_attention_computes_what_the_engines_compute(monkeypatch: pytest.MonkeyPatch):
    """Traced, but not compiled, which takes long; what is timed is compared again before."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    contestant = attention.contestants()["FlexAttention, compiled"]
    off = attention.difference(contestant, "T5Bias()", causal=True, device="cpu", backward=False)
    assert off is not None
    assert off <= 1
    assert attention.difference(contestant, "T5Bias()", causal=True, device="cpu", backward=True) is None


@pytest.mark.parametrize("backward", [False, True])
def test_a_peer_that_is_wrong_is_not_timed(backward: bool, monkeypatch: pytest.MonkeyPatch):
    def wrong(problem: problems.Problem) -> torch.Tensor:
        output = peers.gather_scatter(problem)
        # In the output; or, with the backward pass, in the gradients alone.
        return output + 0 * output.detach() if not backward else output + (problem.value - problem.value.detach())

    def slightly_wrong(problem: problems.Problem) -> torch.Tensor:
        return wrong(problem) if backward else wrong(problem) * (1 + 1e-6)

    peer = peers.PEERS["gather/scatter"]._replace(prepare=lambda problem: partial(slightly_wrong, problem))
    monkeypatch.setitem(peers.PEERS, "gather/scatter", peer)
    with pytest.raises(RuntimeError, match="gather/scatter"):
        attention.check(["gather/scatter"], "Shaw(16)", causal=True, device="cpu", backward=backward)


def test_packages_and_compilers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(peers, "compiler", lambda: None)
    problem = problems.make("T5Bias()", 8)
    assert "bench" in str(peers.PEERS["x-transformers"].refuses(problem, False))
    assert "compiler" in str(peers.PEERS["FlexAttention, compiled"].refuses(problem, False))


def test_every_engine_takes_part():
    assert set(problems.ENGINE_NAMES) | set(peers.PEERS) | {attention.PLAIN} == set(attention.contestants())


@pytest.mark.parametrize("which", attention.PASSES)
def test_attention_is_compared_with_plain_attention(which: str):
    names = [name for name in attention.contestants() if name in COMPARED or name in problems.ENGINE_NAMES]
    rows = attention.measure(names, problems.make("T5Bias()", 20, causal=True), which, seconds=0, limit=60)
    assert [row["contestant"] for row in rows] == [attention.PLAIN, *names]
    assert rows[0]["ratio"] == 1
    timed = {row["contestant"] for row in rows if row.get("rounds", 0) >= 3 and row["seconds"] > 0}
    skipped = {row["contestant"] for row in rows if row.get("why") == "case" and row["skipped"]}
    assert timed | skipped == {attention.PLAIN, *names}
    assert {"auto", "eager", "blockwise", "gather/scatter", "stock T5, sdpa"} <= timed


def test_what_is_too_slow_or_too_large_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    slow: dict[str, str] = {}
    rows = attention.measure(["eager"], problems.make("Shaw(16)", 20), BOTH, seconds=0, limit=0, slow=slow)
    assert "limit" in rows[1]["skipped"]
    again = attention.measure(["eager"], problems.make("Shaw(16)", 40), BOTH, seconds=0, limit=99, slow=slow)
    assert again[1] == rows[1]
    assert again[1]["why"] == "time"

    monkeypatch.setattr(attention, "bytes_free", lambda device: 2**20)
    rows = attention.measure(["eager", "blockwise"], problems.make("Shaw(16)", 100), BOTH, seconds=0, limit=99)
    assert rows[1]["why"] == "memory"
    assert "GiB" in rows[1]["skipped"]
    assert rows[2]["rounds"] >= 3


# Decoding, long inputs


@pytest.mark.usefixtures("small_models")
def test_decoding_compares_tokens_per_second():
    rows = decoding.measure(tokens=3, seconds=0)
    assert [row["model"] for row in rows] == [models.UNPATCHED, *models.PATCHES["gpt2"]]
    assert rows[0]["ratio"] == 1
    for row in rows:
        assert row["tokens_per_second"] > 0
        assert row["ratio"] == pytest.approx(row["tokens_per_second"] / rows[0]["tokens_per_second"], rel=0.02)


@pytest.mark.usefixtures("small_models")
def test_decoding_refuses_a_model_that_computes_something_else(monkeypatch: pytest.MonkeyPatch):
    def other(*args, **kwargs):
        model = models.patched(*args, layers=1, **kwargs)
        torch.nn.init.normal_(model.transformer.h[0].attn.relpos.schemes[0].value_table.weight)
        return model

    monkeypatch.setattr(decoding, "patched", other)
    with pytest.raises(RuntimeError, match="other logits"):
        decoding.measure(tokens=3, seconds=0, names=["Shaw(16)"])


@pytest.mark.parametrize("limit", [300, 447, 448, 449, 5000])
def test_the_longest_sequence_is_found_to_the_grain(limit: int):
    found = long.longest(lambda length: length <= limit)
    assert found <= limit < found + long.GRAIN
    assert found % long.GRAIN == 0


def test_a_window_is_compared_with_all_tokens():
    whole, near = long.windowed(1024, threads=1)
    assert (whole["window"], whole["ratio"], near["window"]) == (None, 1.0, long.WINDOW)
    problem = problems.make("Shaw(16)", 300)
    within = replace(problem, window=4)
    assert within.mask.window == 4
    assert not torch.allclose(problems.by_engine("auto", problem), problems.by_engine("auto", within))


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="budget"):
        long.longest(lambda length: False)


@pytest.mark.parametrize("form", [long.GATHER, long.PACKAGE])
def test_the_peak_of_attention_is_at_least_its_gradients(form: str):
    gradients = 3 * problems.HEADS * problems.HEAD_DIM * 1024 * 4 / 2**20
    assert gradients < long.peak_here(form, 1024, threads=1) < 2000


# The check for machines with a GPU


def test_the_gpu_check_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "--device cpu --quick" in capsys.readouterr().err


def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "QUICK_SHAPES", ((5, 9),))
    monkeypatch.setattr(gpu_check, "TERMS", {"all, gated": gpu_check.TERMS["all, gated"], "bias": ("bias",)})


def test_the_gpu_check_finds_every_engine_right_over_masks_and_dtypes(monkeypatch: pytest.MonkeyPatch):
    few_cases(monkeypatch)
    rows = list(gpu_check.correctness(CPU, gpu_check.QUICK_SHAPES, gpu_check.Clock(600)))
    assert all(row["right"] for row in rows), [row for row in rows if not row["right"]]
    assert {row["engine"] for row in rows} == set(gpu_check.ENGINE_NAMES)
    for engine in ("auto", "eager", "blockwise"):
        assert sum(row["engine"] == engine for row in rows) == 2 * len(gpu_check.MASKS) * len(gpu_check.DTYPES)


@pytest.mark.parametrize("fault", ["output", "gradient", "not a number"])
def test_the_gpu_check_reports_an_engine_that_is_wrong(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    few_cases(monkeypatch)
    right = gpu_check.ENGINES["blockwise"]

    def wrong(query, key, value, *args, **kwargs):
        output, weights = right.attend(query, key, value, *args, **kwargs)
        if fault == "output":
            return output * 1.1, weights
        if fault == "gradient":
            return output + (query - query.detach()), weights
        return output * float("nan"), weights

    monkeypatch.setitem(gpu_check.ENGINES, "blockwise", replace(right, attend=wrong))
    monkeypatch.setattr(gpu_check, "attention_tables", lambda *args: iter(()))
    monkeypatch.setattr(gpu_check, "step_tables", lambda *args: iter(()))
    assert gpu_check.main(["--device", "cpu", "--quick"]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG: ")]
    assert sum("blockwise" in line for line in said) == 2 * len(gpu_check.MASKS) * len(gpu_check.DTYPES)
    assert all("blockwise" in line or "auto" in line for line in said)


def test_the_gpu_check_reports_a_kernel_that_gives_other_bits_in_a_second_run(monkeypatch: pytest.MonkeyPatch):
    few_cases(monkeypatch)
    right, runs = gpu_check.ENGINES["eager"], itertools.count()

    def unsteady(*args, **kwargs):
        output, weights = right.attend(*args, **kwargs)
        return output * (1 + 1e-14 * next(runs)), weights

    monkeypatch.setitem(gpu_check.ENGINES, "fused", replace(right, name="fused", attend=unsteady))
    monkeypatch.setattr(gpu_check, "DTYPES", (torch.float64,))
    rows = [row for row in gpu_check.correctness(CPU, ((5, 9),), gpu_check.Clock(600)) if row["engine"] == "fused"]
    assert rows
    for row in rows:
        assert row["times_tolerance"] <= 1
        assert not row["same_bits"]
        assert not row["right"]


@pytest.mark.usefixtures("small_models")
def test_the_gpu_check_makes_its_tables():
    lengths = {torch.float32: (8,)}
    made = list(gpu_check.attention_tables(CPU, lengths, 0.0, gpu_check.Clock(600)))
    assert [each["of"]["scheme"] for each in made] == list(attention.SCHEMES)
    made = list(gpu_check.step_tables(CPU, lengths, 0.0, gpu_check.Clock(600)))
    assert [each["of"]["family"] for each in made] == list(models.FAMILIES)
    assert all(row["ratio"] > 0 for each in made for row in each["results"])


def test_the_gpu_check_stops_when_its_time_is_over():
    over = gpu_check.Clock(0)
    everything = itertools.chain(
        gpu_check.correctness(CPU, gpu_check.SHAPES, over),
        gpu_check.attention_tables(CPU, gpu_check.LENGTHS, 0.0, over),
        gpu_check.step_tables(CPU, gpu_check.LENGTHS, 0.0, over),
    )
    assert list(everything) == []


def test_the_gpu_check_goes_on_where_a_contestant_fails(monkeypatch: pytest.MonkeyPatch):
    def fails(problem: problems.Problem) -> torch.Tensor:
        raise NotImplementedError("no kernel\nmore")

    peer = peers.PEERS["gather/scatter"]._replace(prepare=lambda problem: partial(fails, problem))
    monkeypatch.setitem(peers.PEERS, "gather/scatter", peer)
    names, failures = gpu_check.working("Shaw(16)", CPU)
    assert "gather/scatter" not in names
    assert "eager" in names
    reasons = {row["contestant"]: row["skipped"] for row in failures}
    assert reasons == {"gather/scatter": "fails: NotImplementedError: no kernel"}
