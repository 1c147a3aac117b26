"""What every registered family and scheme must do, in models: one that is registered enters by itself.

Each needs to be described once: a family by a row of ``tiny.MODELS``, a scheme by a row of ``tiny.SCHEMES`` and its
formula in ``slow.SCHEMES``.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import slow
import tiny
import torch
import transformers
from pairwise import pairs
from tiny import DECODERS, ENCODER_DECODERS, FAMILIES, GATES, assert_close, build, choices, fill, patched
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

import hf_relpos
from hf_relpos import is_patched, patch_model, unpatch_model
from hf_relpos.families import FAMILIES as REGISTERED_FAMILIES
from hf_relpos.schemes import SCHEMES as REGISTERED_SCHEMES
from hf_relpos.schemes import SchemeConfig

# What can be chosen besides family, scheme, native and gate, as axes of some tests.
OPTIONS = {"share_layers": (False, True), "layers": (None, (0,), (1,)), "window": (None, 1, 4)}


def test_every_registered_family_and_scheme_takes_part():
    for name in REGISTERED_FAMILIES:
        rows = [row for row in tiny.MODELS.values() if row.family == name]
        assert rows, f"The family {name!r} is registered, but the tests do not know it: give it a row in tiny.MODELS."
    schemes = [one for row in tiny.SCHEMES.values() for one in ([row] if isinstance(row, SchemeConfig) else row)]
    for name, scheme in REGISTERED_SCHEMES.items():
        assert any(isinstance(one, scheme) for one in schemes), (
            f"The scheme {name!r} is registered, but the tests do not know it: give it a row in tiny.SCHEMES."
        )
        assert name in slow.SCHEMES, (
            f"The scheme {name!r} is registered, but has nothing to be compared with: "
            "write its formula down as a SlowScheme, and name that in slow.SCHEMES."
        )


# The function


def labelled_with_padding(family):
    """A batch whose loss is that of real tokens, predicted at real tokens."""
    batch = tiny.inputs(family)
    if family in ENCODER_DECODERS:
        return {**batch, "labels": batch.pop("decoder_input_ids")}
    real = batch["attention_mask"].bool()
    real[:, 1:] &= real[:, :-1].clone()
    return {**batch, "labels": batch["input_ids"].masked_fill(~real, -100)}


@pytest.mark.core
@tiny.pairs(along={**OPTIONS, "engine": ("eager", "blockwise")})
def test_it_computes_what_the_slow_reference_computes_with_the_same_gradients(
    family, scheme, native, gate, share_layers, layers, window, engine
):
    options = {"share_layers": share_layers, "layers": layers, "window": window, "engine": engine}
    config = choices(scheme, native, gate, **options)
    model = patched(family, scheme, native, gate, torch.float64, **options)
    stock = build(family, dtype=torch.float64)
    pretrained = {path: table.weight.detach().clone() for path, table in slow.native_tables(stock)}
    reference = slow.reference_of(model, stock, config)
    batch = labelled_with_padding(family)
    out, wanted = model(**batch), reference(**batch)
    real = ... if family in ENCODER_DECODERS else batch["attention_mask"].bool()
    assert_close(out.logits[real], wanted.logits[real], atol=1e-9)

    # The reference reads the parameters that were added off the model, but the factor of a native table: it is in the
    # table already.
    ours, theirs = dict(model.named_parameters()), dict(reference.named_parameters())
    theirs |= {name: value for name, value in tiny.added(model).items() if not name.endswith("relpos_gate.weight")}
    expected = dict(zip(theirs, torch.autograd.grad(wanted.loss, list(theirs.values())), strict=True))
    for path, table in pretrained.items():
        gradient = expected.pop(f"{path}.weight")
        if native == "gate":
            expected[f"{path}.relpos_gate.weight"] = (gradient * table).sum().view(1)
            gradient = gradient * ours[f"{path}.relpos_gate.weight"].detach()
        if native != "drop":
            expected[f"{path}.weight"] = gradient
    assert ours.keys() == expected.keys()
    for name, gradient in zip(ours, torch.autograd.grad(out.loss, list(ours.values())), strict=True):
        assert_close(gradient, expected[name], atol=1e-8)
        if "relpos" in name:
            assert gradient.any(), f"{name} cannot learn"


@pytest.mark.core
@pairs(
    family=FAMILIES, scheme=tiny.SCHEMES, native=("keep", "gate"), gate=GATES, share_layers=(False, True),
    apart=("family", "scheme"),
)  # fmt: skip
def test_a_fresh_patch_changes_nothing_if_it_says_so_and_learns_from_its_first_step(
    family, scheme, native, gate, share_layers
):
    batch, config = tiny.inputs(family), choices(scheme, native, gate, share_layers=share_layers)
    model = patch_model(build(family, dtype=torch.float64), config)
    stock, fresh = tiny.real_logits(build(family, dtype=torch.float64), batch), tiny.real_logits(model, batch)
    assert (tiny.differ(fresh, stock) < 1e-9) == config.starts_exact
    assert bool(tiny.added(model)) == config.learns
    model.train()(**tiny.labelled(family)).loss.backward()
    for name, parameter in tiny.added(model).items():
        assert parameter.grad is not None, name
        # The second of two factors waits for the first; gates wait for the tables.
        if "table" in name and not name.endswith(".right"):
            assert parameter.grad.any(), name


@tiny.few()
def test_every_added_parameter_changes_the_output(family, scheme, native, gate):
    """A patch that succeeded and does nothing is the worst fault of all."""
    model, batch = patched(family, scheme, native, gate), tiny.inputs(family)
    before = tiny.real_logits(model, batch)
    for name, parameter in tiny.added(model).items():
        original = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter))
            after = tiny.real_logits(model, batch)
            parameter.copy_(original)
        assert tiny.differ(before, after) > 1e-4, f"{name} has no effect"
    assert torch.equal(tiny.real_logits(model, batch), before)


@pairs(family=FAMILIES, scheme=tiny.SCHEMES, apart=("family", "scheme"))
def test_the_order_of_tokens_is_seen_when_native_positions_are_dropped(family, scheme):
    model = patched(family, scheme, "drop", "none")
    batch = tiny.inputs(family, padding=False)
    moved = {name: value.clone() for name, value in batch.items()}
    for name in [name for name in moved if name.endswith("input_ids")]:
        moved[name][:, [1, 4]] = moved[name][:, [4, 1]]
    assert tiny.differ(tiny.logits(model, batch)[:, -1], tiny.logits(model, moved)[:, -1]) > 1e-3


@pytest.mark.core
@tiny.few()
def test_bfloat16_errs_at_most_twice_as_much_as_the_slow_reference_in_it(family, scheme, native, gate):
    """Both are compared with float32, on parameters that bfloat16 can hold."""
    model, batch = patched(family, scheme, native, gate), tiny.inputs(family)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    exact = tiny.real_logits(model, batch)
    low = copy.deepcopy(model).to(torch.bfloat16)
    plain = slow.reference_of(low, build(family).to(torch.bfloat16), choices(scheme, native, gate))
    error, allowed = ((tiny.real_logits(one, batch) - exact).norm() / exact.norm() for one in (low, plain))
    assert tiny.logits(low, batch).dtype == torch.bfloat16
    assert error < 2 * allowed + 0.01


# Who sees whom


@pytest.mark.core
@tiny.few(*DECODERS)
def test_the_last_token_does_not_reach_earlier_logits_of_a_causal_model(family, scheme, native, gate):
    model, batch = patched(family, scheme, native, gate, torch.float64), tiny.inputs(family, padding=False)
    changed = {name: value.clone() for name, value in batch.items()}
    ids = changed["decoder_input_ids" if family in ENCODER_DECODERS else "input_ids"]
    ids[:, -1] = (ids[:, -1] + 1) % tiny.VOCAB
    before, after = tiny.logits(model, batch), tiny.logits(model, changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert tiny.differ(before[:, -1], after[:, -1]) > 1e-3


@pytest.mark.core
@tiny.few(along={"side": ("left", "right")})
def test_padding_changes_nothing_for_real_tokens(family, scheme, native, gate, side):
    first = tiny.MODELS[family].first
    if tiny.MODELS[family].limit is not None and first is None:
        native = "drop"  # its absolute positions count padding, and cannot be given
    model, batch = patched(family, scheme, native, gate, torch.float64), tiny.inputs(family, length=8, padding=False)
    expected = tiny.logits(model, batch)
    padded, real = {**batch}, slice(4, None) if side == "left" else slice(0, 8)
    padded["attention_mask"] = torch.zeros(3, 12, dtype=torch.long)
    padded["attention_mask"][:, real] = 1
    padded["input_ids"] = tiny.tokens(3, 12, seed=8)
    padded["input_ids"][:, real] = batch["input_ids"]
    if family in ENCODER_DECODERS:
        assert_close(tiny.logits(model, padded), expected)
        return
    if native != "drop":
        # Absolute positions must be counted from the first real token; relative ones need not be told.
        padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0) + first
    assert_close(tiny.logits(model, padded)[:, real], expected)


# Decoding


def static_cache(model, family, length):
    if family not in ENCODER_DECODERS:
        return StaticCache(model.config, max_cache_len=length)
    return EncoderDecoderCache(
        StaticCache(model.config.get_text_config(decoder=True), max_cache_len=length), DynamicCache()
    )


@pytest.mark.core
@tiny.pairs(
    *DECODERS,
    along={
        **OPTIONS,
        "engine": ("eager", "blockwise"),
        "cache": ("dynamic", "static"),
        "sizes": ((1,) * 9, (3, 4), (6, 1), (2, 5, 1, 3)),
    },
)
def test_decoding_with_a_cache_computes_what_a_full_pass_computes(
    family, scheme, native, gate, share_layers, layers, window, engine, cache, sizes
):
    options = {"share_layers": share_layers, "layers": layers, "window": window, "engine": engine}
    model = patched(family, scheme, native, gate, torch.float64, **options)
    kept = static_cache(model, family, 14) if cache == "static" else None
    cached, full = tiny.in_parts(model, family, sizes, kept)
    assert_close(cached, full, atol=1e-7)


# Copies, files, and the way back


@pytest.mark.core
@tiny.few(
    along={
        "share_layers": (False, True),
        "dtype": (torch.float32, torch.bfloat16),
        "shards": (None, "4KB"),
        "window": (None, 3),
        "cls": ("auto", "own"),
    }
)
def test_a_reload_is_exact(family, scheme, native, gate, share_layers, dtype, shards, window, cls, tmp_path):
    model = patched(family, scheme, native, gate, share_layers=share_layers, window=window).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=shards or "5GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards is not None)
    made = getattr(transformers, tiny.AUTO_HEAD[family]) if cls == "auto" else getattr(hf_relpos, type(model).__name__)
    twin = tiny.load(made, tmp_path)
    tiny.assert_equal_models(model, twin, tiny.inputs(family))
    if share_layers:  # and they are still shared
        tiny.assert_equal_models(fill(model, seed=9), fill(twin, seed=9), tiny.inputs(family))


@tiny.few(along={"share_layers": (False, True), "way": ("deepcopy", "pickle")})
def test_a_copy_answers_with_its_own_weights_and_has_a_way_back(family, scheme, native, gate, share_layers, way):
    model, batch = patched(family, scheme, native, gate, share_layers=share_layers), tiny.inputs(family)
    before = tiny.logits(model, batch)
    twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    tiny.assert_equal_models(model, twin, batch)
    fill(model, seed=7)
    assert torch.equal(tiny.logits(twin, batch), before)
    assert bool(tiny.added(model)) == (tiny.differ(tiny.logits(model, batch), before) > 1e-3)
    tiny.assert_equal_models(model, fill(twin, seed=7), batch)
    assert torch.equal(tiny.logits(unpatch_model(twin), batch), tiny.logits(build(family), batch))


@pytest.mark.core
@tiny.few(along={**OPTIONS, "implementation": ("eager", "sdpa")})
def test_unpatching_restores_the_model_bit_for_bit(
    family, scheme, native, gate, share_layers, layers, window, implementation
):
    stock = build(family)
    stock.config.architectures = [type(stock).__name__]
    stock.set_attn_implementation(implementation)
    before, batch = tiny.snapshot(stock), tiny.inputs(family)
    logits = tiny.logits(stock, batch)
    patch_model(stock, choices(scheme, native, gate, share_layers=share_layers, layers=layers, window=window))
    assert tiny.differ(tiny.logits(fill(stock), batch), logits) > 1e-3
    assert unpatch_model(stock) is stock
    tiny.assert_same(before, tiny.snapshot(stock))
    assert torch.equal(tiny.logits(stock, batch), logits)
    assert not is_patched(stock)
