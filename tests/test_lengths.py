"""Beyond the trained length: free with dropped absolute positions, an error with a way out where they are kept."""

from __future__ import annotations

import pytest
import slow
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import SCHEMES, assert_close, build, choices, fill, patched

from hf_relpos import patch_model, unpatch_model

LONG = 20  # the models were made for 16


def calls(model, family):
    """The same 20 tokens given in every way a model takes them."""
    ids = tiny.tokens(2, LONG)
    if family == "bart":
        embeddings = model.get_input_embeddings()(ids).detach()
        return {
            "ids": {"input_ids": ids, "decoder_input_ids": ids},
            "mask": {"input_ids": ids, "decoder_input_ids": ids, "attention_mask": torch.ones_like(ids)},
            "embeddings": {"inputs_embeds": embeddings, "decoder_inputs_embeds": embeddings},
        }
    ways = {
        "ids": {"input_ids": ids},
        "mask": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        "positions": {"input_ids": ids, "position_ids": torch.arange(LONG)[None]},
        "positions per sequence": {"input_ids": ids, "position_ids": torch.arange(LONG).expand(2, -1)},
        "embeddings": {"inputs_embeds": model.get_input_embeddings()(ids).detach()},
    }
    if family in ("bert", "bert-decoder", "roberta"):
        ways["token types"] = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}
        ways["embeddings and token types"] = {**ways["embeddings"], "token_type_ids": torch.zeros_like(ids)}
    return ways


@pytest.mark.core
@pairs(family=tiny.ABSOLUTE, scheme=SCHEMES, gate=tiny.GATES, apart=("family", "scheme"))
def test_dropped_positions_free_the_length_however_the_input_is_given(family, scheme, gate):
    model = patched(family, scheme, "drop", gate, torch.float64)
    config = choices(scheme, "drop", gate)
    # The reference has a longer table, of zeros.
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    longer = LONG + 1 if family == "roberta" else LONG
    reference = build(family, dtype=torch.float64, **{name: longer})
    reference.load_state_dict({k: v for k, v in model.state_dict().items() if "relpos" not in k}, strict=False)
    expected = tiny.logits(slow.reference_of(model, reference, config), calls(model, family)["ids"])
    for batch in calls(model, family).values():
        assert_close(tiny.logits(model, batch), expected)


@pytest.mark.core
@pytest.mark.parametrize("family", tiny.ABSOLUTE)
def test_dropped_positions_stay_free_after_save_and_load(family, tmp_path):
    model = patched(family, "sum", "drop", "token")
    model.save_pretrained(tmp_path)
    twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    for batch in calls(model, family).values():
        assert torch.equal(tiny.logits(twin, batch), tiny.logits(model, batch))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gpt2_generates_beyond_its_positions(scheme, tmp_path):
    """From 5 to 13 tokens in a model made for 8, before and after save and load."""
    model = fill(patch_model(build("gpt2", n_positions=8), choices(scheme, "drop", "head")))
    ids = tiny.tokens(1, 5)
    sequences = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert sequences.shape == (1, 13)
    full = tiny.logits(model, {"input_ids": sequences[:, :-1]}, use_cache=False)
    assert torch.equal(full[:, 4:].argmax(-1), sequences[:, 5:])
    model.save_pretrained(tmp_path)
    twin = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    again = twin.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert torch.equal(again, sequences)


def test_bert_as_decoder_generates_beyond_its_positions():
    model = patched("bert-decoder", "sum", "drop", "head", config={"max_position_embeddings": 8})
    ids = tiny.tokens(1, 5)
    for cache in (None, "static"):
        sequences = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, cache_implementation=cache
        )
        full = tiny.logits(model, {"input_ids": sequences[:, :-1]}, use_cache=False)
        assert torch.equal(full[:, 4:].argmax(-1), sequences[:, 5:])


@pytest.mark.core
@pytest.mark.parametrize("native", ["keep", "gate"])
@pytest.mark.parametrize("family", tiny.ABSOLUTE)
def test_kept_positions_beyond_the_limit_are_a_value_error_that_names_it_and_the_way_out(family, native, tmp_path):
    model = patched(family, "shaw", native, "head")
    model.save_pretrained(tmp_path)
    twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    for other in (model, twin, patched(family, "shaw", native, "head").train()):
        before = tiny.snapshot(other)
        for way, batch in calls(other, family).items():
            with pytest.raises(ValueError, match=r'native="drop"') as caught:
                tiny.logits(other, batch)
            assert "16" in str(caught.value), way
            assert not isinstance(caught.value, IndexError)
        tiny.assert_same(before, tiny.snapshot(other))
        # And it works again with an input that fits, up to the very limit.
        assert torch.isfinite(tiny.logits(other, tiny.inputs(family, length=16, padding=False))).all()


@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_generation_beyond_kept_positions_is_the_same_value_error(family):
    model, ids = patched(family, "shaw", "gate", "head"), tiny.tokens(1, 14)
    with pytest.raises(ValueError, match=r'native="drop"'):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)


@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", tiny.T5_LIKES)
def test_t5_knows_no_limit_and_its_native_bias_stays_exact_far_out(family, native):
    config = choices("sum", native, "token")
    model = patched(family, "sum", native, "token", torch.float64)
    reference = slow.reference_of(model, build(family, dtype=torch.float64), config)
    batch = {"input_ids": tiny.tokens(1, 90), "decoder_input_ids": tiny.tokens(1, 70, seed=5)}
    assert_close(tiny.logits(model, batch), tiny.logits(reference, batch))


@pytest.mark.parametrize("family", tiny.ABSOLUTE)
def test_unpatching_brings_the_limit_back(family):
    model = unpatch_model(patched(family, "shaw", "drop", "head"))
    with pytest.raises((IndexError, RuntimeError)):
        tiny.logits(model, {"input_ids": tiny.tokens(1, LONG)})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_blockwise_equals_eager_over_several_blocks(scheme):
    """More queries than one block has, and not a multiple of it."""
    batch = {"input_ids": tiny.tokens(1, 201), "attention_mask": torch.ones(1, 201, dtype=torch.long)}
    batch["attention_mask"][:, -7:] = 0
    for family in ("bert", "gpt2"):
        eager = patched(family, scheme, "drop", "token", torch.float64, engine="eager")
        block = patched(family, scheme, "drop", "token", torch.float64, engine="blockwise")
        assert_close(tiny.logits(block, batch)[:, :194], tiny.logits(eager, batch)[:, :194])
