"""Converting a model: a copy with relative positions learns to say what the original says."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import tiny
import torch
from test_pipelines import tokenizer
from tiny import build, patched, snapshot

import hf_relpos
from hf_relpos import ClippedBias, ConversionError, RelPosConfig, Shaw, T5Bias, TextsError, convert, patch_model
from hf_relpos.conversion import warm_start

SCHEMES = [ClippedBias(8), Shaw(4)]
# Few steps at large rates: what is protected is that something is learned at all.
SETTINGS: dict[str, Any] = {
    "steps": (10, 20), "batch_tokens": 128, "lengths": (8, 16, 32), "learning_rates": (0.1, 3e-3, 3e-2),
    "progress": False,
}  # fmt: skip


def texts(count=100, seed=0):
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(1, 40)}" for _ in range(draw.randrange(5, 60))) for _ in range(count)]


def converted(model, relpos=SCHEMES, source=None, tok=None, **settings):
    return convert(model, relpos, source or texts(), tok or tokenizer(), **{**SETTINGS, **settings})


def rows(model, stage, length):
    (row,) = [row for row in model.relpos_fidelity.rows if (row.stage, row.length) == (stage, length)]
    return row


def mean_of_states(model, stage):
    return sum(rows(model, stage, length).states for length in (8, 16, 32)) / 3


def taken(model):
    """What a model is, less what Transformers leaves on one that was once asked for hidden states."""
    kept = snapshot(model)
    kept["hooks"] = None
    for _, attributes in kept["modules"].values():
        attributes.pop("_output_capturing_hooks_installed", None)
    return kept


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_comes_nearer_to_the_original_which_stays_as_it_is(family):
    model = build(family)
    original = taken(model)
    result = converted(model, start="zeros")
    tiny.assert_same(taken(model), original)
    assert isinstance(result, type(model))
    assert result.config.relpos["native"] == "drop"
    assert mean_of_states(result, "all") > mean_of_states(result, "start") + 0.001


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.ABSOLUTE)
def test_the_result_reads_beyond_the_original_and_says_so(family):
    result, tok = build(family), tokenizer(model_max_length=tiny.POSITIONS)
    result = converted(result, tok=tok, steps=(1, 0))
    assert result.relpos_family.trained_length(result.config) == 32
    assert tok.model_max_length == 32
    batch = tiny.inputs(family, length=50)
    assert torch.isfinite(tiny.logits(result, batch)).all()


@pytest.mark.core
def test_the_result_saves_and_loads_bit_for_bit_and_cannot_be_unpatched(tmp_path):
    result = converted(build("bert"), steps=(2, 2))
    result.save_pretrained(tmp_path)
    loaded = type(result).from_pretrained(tmp_path)
    batch = tiny.inputs("bert", length=20)
    assert torch.equal(tiny.logits(loaded, batch), tiny.logits(result, batch))
    with pytest.raises(hf_relpos.PatchStateError, match="native positions were dropped"):
        hf_relpos.unpatch_model(result)


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    first, same, other = (converted(build("bert"), steps=(2, 2), seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(same[name], tensor) for name, tensor in first.items())
    assert not all(torch.equal(other[name], tensor) for name, tensor in first.items())


def test_the_first_stage_trains_what_was_added_alone_and_the_second_the_layers_but_no_embedding_and_no_head():
    model = build("bert")
    start = converted(model, steps=(0, 0)).state_dict()
    for steps, moves in (((3, 0), {"added"}), ((0, 3), {"added", "layers"})):
        result = converted(model, steps=steps)
        moved = {name for name, tensor in result.state_dict().items() if not torch.equal(tensor, start[name])}
        kinds = {"added" if "relpos" in name else "layers" for name in moved}
        assert kinds == moves
        assert not any("embeddings.weight" in name or "cls." in name for name in moved)
        assert all(parameter.requires_grad for parameter in result.parameters())


def test_from_one_relative_scheme_to_another():
    model = patched("bert", "shaw", native="drop")
    result = converted(model, T5Bias(num_buckets=8, max_distance=6))
    assert result.config.relpos["schemes"][0]["type"] == "t5"
    assert rows(result, "all", 32).states > rows(result, "start", 32).states
    assert model.config.relpos["schemes"][0]["type"] == "shaw"


def test_out_of_a_gated_patch_with_its_positions():
    model = patched("gpt2", "shaw", native="gate")
    result = converted(model, "clipped")
    assert not any("wpe" in name for name in result.state_dict())
    assert rows(result, "all", 16).states > rows(result, "start", 16).states


@pytest.mark.parametrize("scheme", ["alibi", "rotary", "shaw-rank"])
def test_into_schemes_of_every_kind(scheme):
    relpos = RelPosConfig(tiny.SCHEMES[scheme], native="drop", share_layers=scheme == "shaw-rank")
    result = converted(build("bert"), relpos, learning_rates=(0.02, 3e-4, 3e-3))
    assert mean_of_states(result, "all") > mean_of_states(result, "start") + 0.001


# The warm start


def test_a_bias_over_offsets_is_taken_over_by_a_table_that_can_hold_it():
    model = build("t5")
    result = converted(model, ClippedBias(20), steps=(0, 0), start="texts")
    for row in result.relpos_fidelity.rows:
        assert row.states > 0.9999


def test_what_positions_do_to_scores_is_their_mean_over_equal_offsets():
    model = build("bert", cls="BertModel")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[:] = 0.3 * torch.randn(tiny.HIDDEN)
    result = patch_model(copy.deepcopy(model), RelPosConfig("clipped", native="keep", gate="none"))
    batch = {"input_ids": tiny.tokens(4, 12), "attention_mask": torch.ones(4, 12, dtype=torch.long)}
    seen = warm_start.watch(result, [batch])[0]

    attention = model.encoder.layer[0].attention.self
    states = model.embeddings(tiny.tokens(1, 12))[0]
    query, key = (
        getattr(attention, name)(states).view(12, tiny.HEADS, -1).transpose(0, 1) for name in ("query", "key")
    )
    query, key = query - query.mean(1, keepdim=True), key - key.mean(1, keepdim=True)
    scores = query @ key.transpose(1, 2) * tiny.HEAD_DIM**-0.5
    expected = torch.stack([scores.diagonal(offset, 1, 2).mean(1) for offset in range(-11, 12)], 1)
    tiny.assert_close(seen.bias, expected, atol=1e-4)


def test_tables_are_fitted_to_what_was_seen_as_often_as_each_offset_occurs():
    model = patch_model(build("bert", cls="BertModel"), RelPosConfig(ClippedBias(3), native="drop", gate="none"))
    bias = torch.randn(tiny.HEADS, 13)
    vectors = torch.zeros(tiny.HEADS, 2, tiny.HEAD_DIM)
    warm_start.start_tables(model, [warm_start.Seen(bias, vectors, vectors, 1.0)] * tiny.LAYERS)
    table = model.encoder.layer[0].attention.self.relpos.schemes[0].bias_table.weight
    pairs = torch.tensor([7.0 - abs(offset) for offset in range(-6, 7)])
    far = torch.stack([(bias * pairs)[:, side].sum(1) / pairs[side].sum() for side in (slice(0, 4), slice(9, 13))], 1)
    expected = torch.cat([far[:, :1], bias[:, 4:9], far[:, 1:]], 1) - (bias * pairs).sum(1, keepdim=True) / pairs.sum()
    tiny.assert_close(table, expected, atol=1e-3)


def test_a_single_short_text_is_enough():
    result = converted(build("bert"), source=["w1 w2 w3 w4 w5"], steps=(1, 1), lengths=(4, 5))
    assert len(result.relpos_fidelity.rows) == 6


def test_texts_that_do_not_fill_the_longest_sequence_are_refused_or_warned_of(caplog):
    with pytest.raises(TextsError, match="has 10 tokens in all, and the longest of `lengths` takes 32: nothing could"):
        converted(build("bert"), source=["w1 w2"] * 5)
    converted(build("bert"), source=["w1 w2"] * 20, steps=(0, 0))
    assert "held out to measure on (1) have 2 tokens in all, and the longest of the lengths takes 32" in caplog.text
    caplog.clear()
    converted(build("bert"), steps=(0, 0))
    assert "held out" not in caplog.text
    assert "the longest of the lengths" not in caplog.text


def test_lengths_below_what_the_model_reads_are_warned_of(caplog):
    converted(build("bert"), steps=(0, 0), lengths=(8,))
    assert "the longest of the lengths is 8, and the model reads" in caplog.text


def test_where_the_tables_start_is_as_asked_for():
    added = {}
    for start in ("texts", "data-free", "zeros"):
        added[start] = torch.cat(
            [p.flatten() for p in tiny.added(converted(build("gpt2"), "clipped", steps=(0, 0), start=start)).values()]
        )
    gates = tiny.LAYERS * tiny.HEADS
    assert added["zeros"].count_nonzero() == gates
    assert added["texts"].count_nonzero() > gates
    assert tiny.differ(added["texts"], added["data-free"]) > 0.01


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_a_position_that_all_tokens_have_is_folded_in_exactly(family):
    model = build(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("position_embeddings.weight", "wpe.weight")):
                parameter[:] = torch.randn(parameter.shape[1], generator=torch.Generator().manual_seed(0))
    result = converted(model, ClippedBias(4), steps=(0, 0), start="zeros")
    batch = tiny.inputs(family)
    mine, theirs = (tiny.logits(one, batch).log_softmax(-1)[batch["attention_mask"].bool()] for one in (result, model))
    tiny.assert_close(mine, theirs, atol=1e-4)


# What is refused


def same_before_and_after(model, match, error=ConversionError, **given):
    before = taken(model)
    with pytest.raises(error, match=match):
        converted(model, **given)
    tiny.assert_same(taken(model), before)


@pytest.mark.core
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"relpos": RelPosConfig("shaw", native="gate")}, "native='gate'"),
        ({"source": ["  ", ""]}, "There is no text in it"),
        ({"source": ["w1", "w2"]}, "None of the 2 texts in it has two tokens"),
        ({"source": ["w1 w2", 3]}, "number 1 is 3, but must be a string"),
        ({"source": "nowhere/there is none"}, "no such file here. Give the path of a text file"),
        ({"source": "typo.txt"}, "no such file here. Give the path of a text file"),
        ({"lengths": (8, 1)}, "`lengths` is .8, 1., but must be whole numbers of at least 2"),
        ({"lengths": 8}, "`lengths` is 8, but must be whole numbers"),
        ({"steps": (1,)}, "`steps` is"),
        ({"steps": 5}, "`steps` is 5, but must be two whole numbers"),
        ({"learning_rates": 1e-3}, "`learning_rates` is 0.001, but must be three"),
        ({"matching": {"embedding": 1}}, "`matching` is .*, but must be None or a Matching"),
        ({"training_arguments": ["bf16"]}, "`training_arguments` is .*, but must be None or a dictionary"),
        ({"batch_tokens": 0}, "`batch_tokens` is 0"),
        ({"learning_rates": (1, 1, -1)}, "`learning_rates` is"),
        ({"start": "warm"}, "`start` is 'warm', but must be one of 'data-free', 'texts', 'zeros'"),
        ({"target": 2}, "`target` is 2"),
        ({"training_arguments": {"seed": 3}}, "`training_arguments` has 'seed', which convert sets itself"),
    ],
    ids=lambda given: "" if isinstance(given, str) else next(iter(given)),
)
def test_what_cannot_be_done_is_refused_before_anything_changes(given, match):
    same_before_and_after(build("bert"), match, TextsError if "source" in given else ConversionError, **given)


def test_a_tokenizer_of_another_vocabulary_is_refused():
    same_before_and_after(build("bert", vocab_size=500), "another vocabulary: it has .* tokens")
    same_before_and_after(build("bert", pad_token_id=3), "another vocabulary: it pads with 0, and .* with 3")


def test_models_in_the_wrong_role_are_refused():
    config = RelPosConfig("shaw", native="drop")
    model = patched("bert", "shaw", "drop")
    same_before_and_after(model, "to already", relpos=RelPosConfig(tiny.SCHEMES["shaw"], native="drop"))
    with pytest.raises(hf_relpos.UnsupportedModelError, match=r"^convert takes a model of Transformers"):
        converted(torch.nn.Linear(2, 2), config)
    with pytest.raises(hf_relpos.UnsupportedModelError, match=r"^convert was given 'roberta' \(str\).*from_pretrained"):
        converted("roberta", config)


def test_what_the_original_is_watched_with_goes_to_its_device(monkeypatch):
    model, seen = patched("bert", native="keep").to("meta"), []
    monkeypatch.setattr(warm_start, "read", lambda model, batch, pool: seen.append(batch["input_ids"].device.type))
    with pytest.raises(TypeError):  # nothing was read, so there is nothing to tell
        warm_start.watch(model, [{"input_ids": tiny.tokens(2, 8)}])
    assert seen == ["meta"]
