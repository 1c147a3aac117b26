"""Decoding with a cache computes what a full forward pass computes, for every kind of cache and way to decode."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers
from tiny import DECODERS, ENCODER_DECODERS, SCHEMES, assert_close, most, patched
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

# Longer than every clip distance and than the last bucket's distance, so that tables matter and clip.
PROMPT, NEW = 6, 8


def prompt(family, batch=2):
    if family in ENCODER_DECODERS:
        mask = torch.ones(batch, 9, dtype=torch.long)
        mask[-1, -3:] = 0
        return {"input_ids": tiny.tokens(batch, 9), "attention_mask": mask}
    return {"input_ids": tiny.tokens(batch, PROMPT), "attention_mask": torch.ones(batch, PROMPT, dtype=torch.long)}


def generate(model, family, given=None, **arguments):
    arguments = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **arguments}
    with torch.no_grad():
        return model.generate(
            **(given or prompt(family)), **arguments, output_logits=True, return_dict_in_generate=True
        )


def assert_logits_of_full_pass(model, family, given, out):
    """The logits that generation saw are those of one pass over the tokens it made."""
    made = torch.stack(out.logits, 1)
    if family in ENCODER_DECODERS:
        full = tiny.logits(model, {**given, "decoder_input_ids": out.sequences[:, :-1]}, use_cache=False)
    else:
        mask = torch.cat([given["attention_mask"], torch.ones(made.shape[:2], dtype=torch.long)], 1)
        batch = {"input_ids": out.sequences[:, :-1], "attention_mask": mask[:, :-1]}
        if not (mask == 1).all():
            batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        full = tiny.logits(model, batch, use_cache=False)
    assert_close(made.double(), full[:, -made.shape[1] :].double(), atol=1e-7)


def in_parts(model, family, sizes, cache=None):
    """Logits of a forward pass that gets its tokens in parts and keeps a cache."""
    batch = tiny.inputs(family, length=sum(sizes), padding=False)
    name, more = "input_ids", {}
    if family in ENCODER_DECODERS:
        name, mask = "decoder_input_ids", tiny.inputs(family)["attention_mask"]
        batch = {"decoder_input_ids": tiny.tokens(3, sum(sizes)), "attention_mask": mask}
        with torch.no_grad():
            more["encoder_outputs"] = model.get_encoder()(tiny.tokens(3, mask.shape[1], seed=4), attention_mask=mask)
        more["attention_mask"] = mask
    ids, logits, start = batch[name], [], 0
    full = tiny.logits(model, {name: ids, **more}, use_cache=False)
    for size in sizes:
        part = {name: ids[:, start : start + size], **more}
        with torch.no_grad():
            out = model(**part, use_cache=True, **tiny.caching(model, cache))
        cache = tiny.cache_of(out)
        logits.append(out.logits)
        start += size
    return torch.cat(logits, 1), full


@pytest.mark.core
@most(*DECODERS)
def test_cached_logits_equal_a_full_pass(family, scheme, native, gate):
    model = patched(family, scheme, native, gate, torch.float64)
    for sizes in ((1,) * 9, (3, 4), (6, 1), (2, 5, 1, 3)):
        cached, full = in_parts(model, family, sizes)
        assert_close(cached, full, atol=1e-7)


def static_cache(model, family, length):
    if family not in ENCODER_DECODERS:
        return StaticCache(model.config, max_cache_len=length)
    return EncoderDecoderCache(
        StaticCache(model.config.get_text_config(decoder=True), max_cache_len=length), DynamicCache()
    )


@pytest.mark.core
@tiny.few(*DECODERS)
def test_logits_with_a_static_cache_equal_a_full_pass(family, scheme, native, gate):
    """Its position is a tensor that it moves before attention runs."""
    for engine in ("eager", "blockwise"):
        model = patched(family, scheme, native, gate, torch.float64, engine=engine)
        for sizes in ((1,) * 9, (3, 4), (6, 1), (2, 5, 1, 3)):
            cached, full = in_parts(model, family, sizes, static_cache(model, family, 14))
            assert_close(cached, full, atol=1e-7)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("family", DECODERS)
def test_cached_logits_equal_a_full_pass_with_a_window(family, window):
    for engine in ("eager", "blockwise"):
        model = patched(family, "sum", "gate", "token", torch.float64, window=window, engine=engine)
        for cache in (None, static_cache(model, family, 14)):
            cached, full = in_parts(model, family, (4, 1, 1, 5, 1), cache)
            assert_close(cached, full, atol=1e-7)


@pytest.mark.parametrize("layers", [[0], [1]])
@pytest.mark.parametrize("family", DECODERS)
def test_cached_logits_equal_a_full_pass_with_some_layers_or_shared_ones(family, layers):
    for share_layers in (False, True):
        model = patched(family, "sum", "gate", "token", torch.float64, layers=layers, share_layers=share_layers)
        cached, full = in_parts(model, family, (4, 1, 1, 5, 1))
        assert_close(cached, full, atol=1e-7)


@pytest.mark.core
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", DECODERS)
def test_greedy_generation_equals_generation_without_a_cache(family, native, cache):
    model, given = patched(family, "sum", native, "token", torch.float64), prompt(family)
    out = generate(model, family, cache_implementation=cache)
    assert_logits_of_full_pass(model, family, given, out)
    without = generate(model, family, use_cache=False)
    assert torch.equal(out.sequences, without.sequences)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", DECODERS)
def test_generation_goes_beyond_the_clip_distance(family, scheme):
    model, given = patched(family, scheme, "drop", "head", torch.float64), prompt(family)
    out = generate(model, family, max_new_tokens=14)
    assert out.sequences.shape[1] == 14 + (1 if family in ENCODER_DECODERS else PROMPT)
    assert_logits_of_full_pass(model, family, given, out)


@pytest.mark.core
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("native", tiny.NATIVE)
@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_generation_from_left_padded_prompts_equals_each_prompt_alone(family, native, cache):
    """Absolute positions come from the mask, relative ones from the cache; they disagree here."""
    model = patched(family, "sum", native, "token", torch.float64)
    ids = tiny.tokens(2, PROMPT)
    mask = torch.ones(2, PROMPT, dtype=torch.long)
    mask[1, :3] = 0
    given = {"input_ids": ids * mask, "attention_mask": mask}
    out = generate(model, family, given, cache_implementation=cache)
    alone = generate(model, family, {"input_ids": ids[1:, 3:], "attention_mask": mask[1:, 3:]})
    if family == "bert-decoder" and native != "drop":
        # Stock BERT does not count positions from the mask in generation: compare with a full pass only.
        return
    assert torch.equal(out.sequences[1:, PROMPT:], alone.sequences[:, 3:])
    assert_close(torch.stack(out.logits, 1)[1:], torch.stack(alone.logits, 1), atol=1e-5)
    assert_logits_of_full_pass(model, family, given, out)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_beam_search_equals_beam_search_without_a_cache(family, cache):
    model = patched(family, "sum", "gate", "token", torch.float64)
    beams = {"num_beams": 3, "num_return_sequences": 2}
    out = generate(model, family, cache_implementation=cache, **beams)
    without = generate(model, family, use_cache=False, **beams)
    assert torch.equal(out.sequences, without.sequences)
    assert_close(out.sequences_scores, without.sequences_scores, atol=1e-5)
    greedy = generate(model, family)
    assert out.sequences.shape[1] == greedy.sequences.shape[1]


@pytest.mark.parametrize("family", DECODERS)
def test_assisted_generation_equals_greedy_generation(family):
    """A helper that is often wrong: the cache is cropped again and again."""
    model = patched(family, "sum", "drop", "token", torch.float64)
    helper = patched(family, "shaw", "drop", "head", torch.float64)
    given = prompt(family, batch=1)
    expected = generate(model, family, given)
    out = generate(model, family, given, assistant_model=helper)
    assert torch.equal(out.sequences, expected.sequences)
    itself = generate(model, family, given, assistant_model=patched(family, "sum", "drop", "token", torch.float64))
    assert torch.equal(itself.sequences, expected.sequences)


@pytest.mark.parametrize("family", DECODERS)
def test_prompt_lookup_equals_greedy_generation(family):
    model, given = patched(family, "sum", "drop", "token", torch.float64), prompt(family, batch=1)
    given["input_ids"] = given["input_ids"][:, :3].repeat(1, given["input_ids"].shape[1] // 3)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    expected = generate(model, family, given)
    out = generate(model, family, given, prompt_lookup_num_tokens=3)
    assert torch.equal(out.sequences, expected.sequences)


@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_prompt_read_in_chunks_equals_the_prompt_read_at_once(family):
    model, given = patched(family, "sum", "gate", "token", torch.float64), prompt(family)
    expected = generate(model, family, given)
    out = generate(model, family, given, prefill_chunk_size=2)
    assert torch.equal(out.sequences, expected.sequences)
    assert_close(torch.stack(out.logits, 1), torch.stack(expected.logits, 1), atol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_sampling_is_the_same_with_and_without_a_cache(family):
    model, sequences = patched(family, "sum", "gate", "token", torch.float64), []
    for use_cache in (True, False):
        torch.manual_seed(5)
        sequences.append(generate(model, family, do_sample=True, use_cache=use_cache).sequences)
    assert torch.equal(*sequences)


@pytest.mark.parametrize("family", DECODERS)
def test_generation_after_reload_equals_generation_before(family, tmp_path):
    model = patched(family, "sum", "drop", "token")
    model.save_pretrained(tmp_path)
    twin = getattr(transformers, tiny.AUTO_HEAD[family]).from_pretrained(tmp_path)
    assert torch.equal(generate(twin, family).sequences, generate(model, family).sequences)


def test_generation_depends_on_relative_positions():
    """Guards the tests above: with tables of this size, a wrong offset gives other tokens."""
    for family in DECODERS:
        stock = generate(tiny.build(family, dtype=torch.float64), family)
        ours = generate(patched(family, "sum", "gate", "token", torch.float64), family)
        assert not torch.equal(stock.sequences, ours.sequences)
        assert tiny.differ(stock.logits[0], ours.logits[0]) > 0.05
