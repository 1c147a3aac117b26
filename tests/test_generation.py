"""Decoding with a cache computes what a full forward pass computes, for every kind of cache and way to decode."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import DECODERS, ENCODER_DECODERS, SCHEMES, assert_close, patched
from transformers import CompileConfig, DynamicCache, EncoderDecoderCache, QuantizedCache, cache_utils
from transformers.utils import is_optimum_quanto_available

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


def sliding_cache(family, layer, window):
    """A cache that forgets what a window no longer reaches: it holds one key fewer than its size, and the new one."""
    sizes = {"sliding_window": window + 1}
    if layer is cache_utils.StaticSlidingWindowLayer:
        sizes["max_cache_len"] = 14
    cache = cache_utils.Cache(layers=[layer(**sizes) for _ in range(tiny.LAYERS)])
    return EncoderDecoderCache(cache, DynamicCache()) if family in ENCODER_DECODERS else cache


@pairs(
    family=DECODERS,
    layer=(cache_utils.DynamicSlidingWindowLayer, cache_utils.StaticSlidingWindowLayer),
    window=(1, 4),
)
def test_logits_with_a_sliding_cache_as_wide_as_the_window_equal_a_full_pass(family, layer, window):
    """The first key in the cache is then no longer the first token."""
    for engine in ("eager", "blockwise"):
        model = patched(family, "sum", "gate", "token", torch.float64, window=window, engine=engine)
        for sizes in ((1,) * 9, (4, 1, 1, 5, 1)):
            cached, full = tiny.in_parts(model, family, sizes, sliding_cache(family, layer, window))
            assert_close(cached, full, atol=1e-7)


QUANTISED = {
    "fp8": ({}, hasattr(cache_utils, "Fp8QuantizedLayer"), "this Transformers has no fp8 cache"),
    "quanto": ({"q_group_size": 16, "residual_length": 2}, is_optimum_quanto_available(), "needs optimum-quanto"),
}


@pytest.mark.parametrize("backend", QUANTISED)
@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_logits_with_a_quantised_cache_are_off_by_the_quantisation_only(family, backend):
    """Transformers offers these caches to decoders alone. Reading keys one place off would change far more."""
    arguments, there, reason = QUANTISED[backend]
    if not there:
        pytest.skip(reason)
    model = tiny.fill(patched(family, "sum", "gate", "head"), seed=3)
    cached, full = tiny.in_parts(model, family, (4, *(1,) * 8), QuantizedCache(backend, model.config, **arguments))
    off = (cached - full).norm() / full.norm()
    moved = (cached[:, 1:] - full[:, :-1]).norm() / full.norm()
    assert 0 < off < 0.1
    assert moved > 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: Transformers makes a stream on it")
@pytest.mark.parametrize("cache", ["offloaded", "offloaded_static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generation_with_an_offloaded_cache_equals_generation_with_the_plain_one(family, cache):
    model = patched(family, "sum", "gate", "token", torch.float64).cuda()
    given = {name: tensor.cuda() for name, tensor in prompt(family).items()}
    expected = generate(model, family, given)
    out = generate(model, family, given, cache_implementation=cache, disable_compile=True)
    assert torch.equal(out.sequences, expected.sequences)
    assert_close(torch.stack(out.logits), torch.stack(expected.logits))


@pytest.mark.core
@pairs(family=DECODERS, native=tiny.NATIVE, cache=(None, "static"))
def test_greedy_generation_equals_generation_without_a_cache(family, native, cache):
    model, given = patched(family, "sum", native, "token", torch.float64), prompt(family)
    out = generate(model, family, cache_implementation=cache)
    assert_logits_of_full_pass(model, family, given, out)
    without = generate(model, family, use_cache=False)
    assert torch.equal(out.sequences, without.sequences)


@pairs(family=DECODERS, scheme=SCHEMES, apart=("family", "scheme"))
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


@pytest.mark.parametrize("more", [{"top_p": 0.9, "temperature": 1.5}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("family", DECODERS)
def test_sampling_follows_the_seed_with_and_without_a_cache(family, more):
    model, sequences = patched(family, "sum", "gate", "token", torch.float64), []
    for seed, cache in ((5, {}), (5, {"cache_implementation": "static"}), (5, {"use_cache": False}), (6, {})):
        torch.manual_seed(seed)
        sequences.append(generate(model, family, do_sample=True, **more, **cache).sequences)
    first, static, uncached, other = sequences
    assert torch.equal(static, first)
    assert torch.equal(uncached, first)
    assert not torch.equal(other, first)


@pytest.mark.core
@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_decoding_with_a_static_cache_compiles_to_one_graph(family):
    """One for all steps, without breaks: no step depends in Python on where it stands."""
    torch._dynamo.reset()
    model, graphs = patched(family, "sum", "gate", "token", torch.float64), []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = CompileConfig(fullgraph=True, backend=count, mode=None)
    compiled._compile_all_devices = True  # by itself Transformers compiles on accelerators only
    out = generate(model, family, cache_implementation="static", compile_config=compiled)
    assert len(graphs) == 1
    expected = generate(model, family)
    assert torch.equal(out.sequences, expected.sequences)
    assert_close(torch.stack(out.logits), torch.stack(expected.logits), atol=1e-7)


@pytest.mark.core
@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_continuous_batching_is_refused(family):
    """Its cache is in pages, and its kernels know of no relative positions."""
    model = patched(family)
    for start in (
        lambda: model.generate_batch([[5, 6, 7]]),
        lambda: model.generate(torch.tensor([[5, 6, 7]]), cache_implementation="paged"),
        lambda: model.init_continuous_batching(),
        lambda: model.set_attn_implementation("paged|eager") or model.init_continuous_batching(),
    ):
        with pytest.raises(ValueError, match="continuous batching"):
            start()


@pytest.mark.core
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_rows_packed_for_flash_attention_are_refused_unless_the_mask_keeps_them_apart(family):
    """What continuous batching and a collator without padding pass on; any attention but flash would mix documents."""
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = collate([{"input_ids": tiny.tokens(size).tolist()} for size in (4, 5)])
    del batch["labels"]
    model = patched(family, "sum", "gate", "token")
    with pytest.raises(ValueError, match=r"packed into one row for flash attention \(cu_seq_lens_q\)"):
        tiny.logits(model, batch)
    if family == "gpt2":
        packed = tiny.logits(model, batch, use_cache=False)
        for start, size in ((0, 4), (4, 5)):
            alone = tiny.logits(model, {"input_ids": tiny.tokens(size)[None]})
            assert_close(packed[:, start : start + size], alone)


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
