"""Who may attend to whom: padding, causality, users' own masks, packed sequences; and masks that do not fit."""

from __future__ import annotations

import pytest
import slow
import tiny
import torch
from pairwise import pairs
from tiny import ENCODER_DECODERS, FAMILIES, SCHEMES, assert_close, build, choices, few, fill, patched
from transformers import StaticCache

from hf_relpos import patch_model

KEY = {family: "decoder_input_ids" if family in ENCODER_DECODERS else "input_ids" for family in FAMILIES}


@pairs(family=FAMILIES, scheme=SCHEMES, gate=("none", "token"), apart=("family", "scheme"))
def test_purely_relative_model_does_not_see_a_shift_of_all_positions(family, scheme, gate):
    model, batch = patched(family, scheme, "drop", gate, torch.float64), tiny.inputs(family, length=8, padding=False)
    for shift in (1, 5):
        moved = {**batch}
        moved["input_ids"] = torch.cat([tiny.tokens(3, shift, seed=8), batch["input_ids"]], 1)
        moved["attention_mask"] = torch.cat([torch.zeros(3, shift, dtype=torch.long), batch["attention_mask"]], 1)
        out = tiny.logits(model, moved)
        assert_close(out if family in ENCODER_DECODERS else out[:, shift:], tiny.logits(model, batch))


@few("t5", "umt5")
def test_padded_decoder_inputs_change_nothing_for_real_tokens(family, scheme, native, gate):
    if family == "bart":
        native = "drop"  # its absolute positions count padding, and cannot be given
    model, batch = patched(family, scheme, native, gate, torch.float64), tiny.inputs(family, length=8, padding=False)
    padded = {**batch}
    padded["decoder_input_ids"] = torch.cat([tiny.tokens(3, 3, seed=8), batch["decoder_input_ids"]], 1)
    padded["decoder_attention_mask"] = (torch.arange(9) >= 3).long().expand(3, -1)
    assert_close(tiny.logits(model, padded)[:, 3:], tiny.logits(model, batch))


def dense_of(mask: torch.Tensor, causal: bool) -> torch.Tensor:
    length = mask.shape[1]
    dense = mask.bool()[:, None, None, :].expand(-1, 1, length, -1)
    return dense & torch.ones(length, length).tril().bool() if causal else dense


def additive(dense: torch.Tensor, lowest: float) -> torch.Tensor:
    return torch.zeros(dense.shape).masked_fill(~dense, lowest)


@pytest.mark.core
@few("bert", "bert-decoder", "gpt2")
def test_users_own_4d_mask_equals_the_2d_mask_it_spells_out(family, scheme, native, gate):
    model, batch = patched(family, scheme, native, gate, torch.float64), tiny.inputs(family)
    real = batch["attention_mask"].bool()
    expected = tiny.logits(model, batch)[real]
    dense = dense_of(batch["attention_mask"], causal=family != "bert")
    for mask in (dense, additive(dense, torch.finfo(torch.float32).min), additive(dense, float("-inf"))):
        assert_close(tiny.logits(model, {**batch, "attention_mask": mask})[real], expected)


@pytest.mark.parametrize("engine", ["eager", "blockwise"])
@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2"])
def test_users_own_arbitrary_4d_mask_equals_the_slow_reference(family, engine):
    config = choices("sum", "gate", "token", engine=engine)
    model = fill(patch_model(build(family, dtype=torch.float64), config))
    reference = slow.reference_of(model, build(family, dtype=torch.float64), config)
    ids = tiny.tokens(3, 9)
    allowed = torch.rand(3, tiny.HEADS, 9, 9) < 0.6
    allowed |= torch.eye(9).bool()
    soft = torch.randn(3, 1, 9, 9, dtype=torch.float64)
    hard = torch.zeros(3, tiny.HEADS, 9, 9, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    for given, dense in ((allowed, hard), (hard, hard), (soft, soft)):
        assert_close(
            tiny.logits(model, {"input_ids": ids, "attention_mask": given}),
            tiny.logits(reference, {"input_ids": ids, "attention_mask": dense}),
            atol=1e-9,
        )


@pytest.mark.parametrize("family", ["t5", "mt5", "umt5"])
def test_users_own_4d_mask_in_both_stacks_of_t5(family):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    length = batch["decoder_input_ids"].shape[1]
    expected = tiny.logits(model, batch)
    given = {**batch, "decoder_attention_mask": dense_of(torch.ones(3, length), causal=True)}
    assert_close(tiny.logits(model, given), expected)
    encoder = model.get_encoder()
    with torch.no_grad():
        plain = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        dense = encoder(input_ids=batch["input_ids"], attention_mask=dense_of(batch["attention_mask"], causal=False))[0]
    real = batch["attention_mask"].bool()
    assert_close(dense[real], plain[real])


def extended(mask: torch.Tensor, lowest: float | None) -> torch.Tensor:
    """The classic mask ``[batch, 1, 1, keys]``: bool, or a number added where a key is hidden."""
    row = mask.bool()[:, None, None]
    return row if lowest is None else additive(row, lowest)


@pytest.mark.core
@pytest.mark.parametrize("lowest", [None, torch.finfo(torch.float32).min, float("-inf")])
@pytest.mark.parametrize("engine", ["auto", "eager", "blockwise"])
@pytest.mark.parametrize("scheme", ["sum", "t5"])
def test_one_row_of_a_4d_mask_is_for_all_queries(scheme, engine, lowest, monkeypatch):
    monkeypatch.setattr("hf_relpos.engines.blockwise.BLOCK_SCORES", 1)  # several blocks of queries
    monkeypatch.setattr("hf_relpos.engines.blockwise.LEAST_QUERIES", 4)
    model, batch = patched("bert", scheme, "gate", "token", torch.float64, engine=engine), tiny.inputs("bert")
    real, given = batch["attention_mask"].bool(), extended(batch["attention_mask"], lowest)
    assert not real.all()
    expected = tiny.logits(model, batch)
    assert_close(tiny.logits(model, {**batch, "attention_mask": given})[real], expected[real])
    with torch.no_grad():
        states = model.bert.encoder(model.bert.embeddings(batch["input_ids"]), attention_mask=given)[0]
        assert_close(model.cls(states)[real], expected[real])


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_one_row_of_a_4d_mask_in_the_encoder_and_the_cross_attention_of_t5(family):
    model, batch = patched(family, "sum", "gate", "token", torch.float64), tiny.inputs(family)
    for lowest in (None, torch.finfo(torch.float32).min):
        given = {**batch, "attention_mask": extended(batch["attention_mask"], lowest)}
        assert_close(tiny.logits(model, given), tiny.logits(model, batch))


@pytest.mark.parametrize("family", ["bert-decoder", "gpt2"])
@pytest.mark.parametrize("queries", [1, 4])
def test_one_row_of_a_4d_mask_with_cached_keys_equals_its_rows_written_out(family, queries):
    """It is all there is to the mask, as in a model that is not patched: nothing is causal by itself."""
    ids, kept = tiny.tokens(2, 9), 9 - queries
    real = torch.ones(2, 9, dtype=torch.long)
    real[0, :2] = 0
    for model in (build(family, dtype=torch.float64), patched(family, "sum", "gate", "token", torch.float64)):
        logits = []
        for mask in (
            extended(real, None),
            # In the dtype of the states: the stock model takes one of another for memory that it is not.
            extended(real, float("-inf")).double(),
            extended(real, None).expand(-1, -1, queries, -1),
        ):
            with torch.no_grad():
                cache = tiny.cache_of(model(ids[:, :kept], use_cache=True))
                rest = {"attention_mask": mask, "position_ids": torch.arange(kept, 9)[None]}
                logits.append(model(ids[:, kept:], **rest, **tiny.caching(model, cache)).logits)
        assert_close(logits[0], logits[2])
        assert_close(logits[1], logits[2])


@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2"])
def test_one_row_of_a_4d_mask_does_what_it_does_in_the_stock_model(family):
    stock, batch = build(family, dtype=torch.float64), tiny.inputs(family)
    given = {**batch, "attention_mask": extended(batch["attention_mask"], None)}
    expected = tiny.logits(stock, given)
    assert_close(tiny.logits(patch_model(stock, choices("sum")), given), expected)


@few("bert-decoder", "gpt2")
def test_users_own_4d_mask_with_cached_keys_places_the_queries_last(family, scheme, native, gate):
    model, ids = patched(family, scheme, native, gate, torch.float64), tiny.tokens(2, 9)
    full = tiny.logits(model, {"input_ids": ids})
    with torch.no_grad():
        first = model(ids[:, :5], use_cache=True)
        mask = torch.ones(9, 9).tril().bool()[None, None, 5:].expand(2, -1, -1, -1)
        positions = torch.arange(5, 9)[None]
        rest = model(
            ids[:, 5:], attention_mask=mask, position_ids=positions, **tiny.caching(model, tiny.cache_of(first))
        )
    assert_close(rest.logits, full[:, 5:])


@pytest.mark.parametrize("family", ["gpt2", "bert-decoder"])
def test_users_own_4d_mask_with_a_static_cache_is_refused(family):
    """Nothing tells where the queries are among unfilled keys; a guess would be silently wrong."""
    model, ids = patched(family, "sum", "drop", "none"), tiny.tokens(2, 5)
    mask = torch.zeros(2, 1, 5, 12).bool()
    mask[..., :5] = torch.ones(5, 5).tril().bool()
    with pytest.raises(ValueError, match="static cache"):
        model(ids, attention_mask=mask, **tiny.caching(model, StaticCache(model.config, max_cache_len=12)))


@pytest.mark.core
@few("gpt2")
def test_packed_sequences_equal_the_sequences_one_by_one(family, scheme, native, gate):
    model, ids = patched(family, scheme, native, gate, torch.float64), tiny.tokens(1, 12)
    positions = torch.cat([torch.arange(5), torch.arange(4), torch.arange(3)])[None]
    packed = tiny.logits(model, {"input_ids": ids, "position_ids": positions, "use_cache": False})
    for start, stop in ((0, 5), (5, 9), (9, 12)):
        assert_close(packed[:, start:stop], tiny.logits(model, {"input_ids": ids[:, start:stop]}))


def test_packed_sequences_run_blockwise_too():
    ids, positions = tiny.tokens(1, 12), torch.cat([torch.arange(5), torch.arange(7)])[None]
    given = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    eager = tiny.logits(patched("gpt2", "sum", engine="eager"), given)
    assert_close(tiny.logits(patched("gpt2", "sum", engine="blockwise"), given), eager)


def test_window_and_packed_sequences_act_together():
    model = patched("gpt2", "sum", window=2)
    ids, positions = tiny.tokens(1, 12), torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = tiny.logits(model, {"input_ids": ids, "position_ids": positions, "use_cache": False})
    assert_close(packed[:, :5], tiny.logits(model, {"input_ids": ids[:, :5]}))
    assert_close(packed[:, 5:], tiny.logits(model, {"input_ids": ids[:, 5:]}))


@pytest.mark.core
@pytest.mark.parametrize("family", ["bert", "bert-decoder", "gpt2"])
@pytest.mark.parametrize(
    "shape",
    [(3, 7), (3, 12), (2, 11), (3, 1, 11, 7), (3, 1, 7, 11), (3, 5, 11, 11), (2, 1, 11, 11), (3, 1, 1, 7)],
)
def test_mask_of_a_wrong_shape_is_a_value_error_that_names_both_shapes(family, shape):
    """Also a mask that is too long: cropping it would hide the wrong tokens."""
    if family == "gpt2" and shape[0] != 3:
        shape = (3, *shape[1:-1], shape[-1] + 1)  # GPT-2 itself reshapes a mask of another batch size
    model = patched(family, "shaw", "gate", "none")
    before = tiny.snapshot(model)
    mask = torch.ones(shape, dtype=torch.bool if len(shape) == 4 else torch.long)
    with pytest.raises(ValueError, match="mask") as caught:
        tiny.logits(model, {"input_ids": tiny.tokens(3, 11), "attention_mask": mask})
    assert str(shape[-1]) in str(caught.value)
    assert "11" in str(caught.value)
    tiny.assert_same(before, tiny.snapshot(model))


@pytest.mark.parametrize("family", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize("name", ["attention_mask", "decoder_attention_mask"])
@pytest.mark.parametrize("columns", [-2, 2])
def test_mask_of_a_wrong_length_is_refused_by_both_stacks_of_t5(family, name, columns):
    model, batch = patched(family, "shaw", "gate", "none"), tiny.inputs(family, padding=False)
    length = batch["input_ids" if name == "attention_mask" else "decoder_input_ids"].shape[1]
    with pytest.raises(ValueError, match="mask"):
        tiny.logits(model, {**batch, name: torch.ones(3, length + columns, dtype=torch.long)})


@pytest.mark.parametrize("family", FAMILIES)
def test_sequence_of_padding_only_gives_finite_logits_and_gradients(family):
    model, batch = patched(family, "sum", "gate", "token"), tiny.inputs(family)
    batch["attention_mask"][1] = 0
    out = model(**batch).logits
    assert torch.isfinite(out).all()
    out.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    # And what is in the other sequences is as it was.
    alone = {name: value[:1] for name, value in batch.items()}
    assert_close(out[:1].detach(), tiny.logits(model, alone))
