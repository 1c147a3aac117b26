"""Other ways to compute the same attention, written from the formula or taken from where people use them.

Each peer turns a problem into the work that is measured, and says which problems it cannot take. Before a peer is timed
it must agree with the reference engine on a small problem.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.problems import HEAD_DIM, HEADS, SCALE, Problem
from hf_relpos.schemes.t5 import T5BiasScheme
from hf_relpos.terms import RelativeTerms, horizon

Work = Callable[[], Tensor]


class Peer(NamedTuple):
    """Another way to compute a problem.

    Attributes:
        prepare: what is done once for a problem (compiling, masks), and returns the work itself.
        refuses: whether it cannot take a problem, with the backward pass or without, in words; None if it can.
        extra_numbers: how many numbers per pair of positions it holds beside those of the scores of all heads.
    """

    prepare: Callable[[Problem], Work]
    refuses: Callable[[Problem, bool], str | None]
    extra_numbers: int = 0


def _takes_all(problem: Problem, backward: bool) -> None:
    return None


def _index(problem: Problem, k: int) -> Tensor:
    """The table row of each pair, ``[length, length]``."""
    return problem.offsets().clamp(-k, k) + k


def _hide_later(scores: Tensor, problem: Problem) -> Tensor:
    return scores.masked_fill(problem.later(), float("-inf")) if problem.causal else scores


# The gather and scatter form: one number per query and offset, brought to its pair by an index per pair.


def gather_scatter(problem: Problem) -> Tensor:
    """Relative scores by ``gather``, weights summed up by offset with ``scatter_add``."""
    terms = problem.terms()
    scores = problem.query @ problem.key.transpose(-1, -2) * SCALE
    if terms.query is not None:
        index = _index(problem, horizon(terms.query)).expand_as(scores)
        scores = scores + (problem.query @ terms.query.transpose(-1, -2) * SCALE).gather(-1, index)
    if terms.bias is not None:
        scores = scores + terms.bias[:, _index(problem, horizon(terms.bias))]
    weights = _hide_later(scores, problem).softmax(-1)
    output = weights @ problem.value
    if terms.value is not None:
        index = _index(problem, horizon(terms.value)).expand_as(weights)
        by_offset = weights.new_zeros(*weights.shape[:-1], terms.value.shape[1]).scatter_add(-1, index, weights)
        output = output + by_offset @ terms.value
    return output


# The form of `relative_key` in Transformers 4, with the value vectors of Shaw et al. besides: a vector for each pair.


def vector_per_pair(problem: Problem) -> Tensor:
    """Scores and output by ``einsum`` over tables laid out as ``[length, length, head_dim]``."""
    terms = problem.terms()
    key_vectors = terms.query[0][_index(problem, horizon(terms.query))]  # type: ignore[index, arg-type]
    value_vectors = terms.value[0][_index(problem, horizon(terms.value))]  # type: ignore[index, arg-type]
    scores = problem.query @ problem.key.transpose(-1, -2)
    scores = (scores + torch.einsum("bhid,ijd->bhij", problem.query, key_vectors)) * SCALE
    weights = _hide_later(scores, problem).softmax(-1)
    return weights @ problem.value + torch.einsum("bhij,ijd->bhid", weights, value_vectors)


def _needs_shared_vectors(problem: Problem, backward: bool) -> str | None:
    terms = _terms_of(problem)
    has_both = terms.query is not None and terms.value is not None and terms.query.shape[0] == terms.value.shape[0] == 1
    return None if has_both else "is for key and value vectors that all heads share"


# A bias as a dense mask of PyTorch's fused attention.


def dense_mask(problem: Problem) -> Tensor:
    """The bias for every pair, given to ``scaled_dot_product_attention`` as its mask."""
    bias = problem.terms().bias
    return _masked_by(bias[:, _index(problem, horizon(bias))], problem)  # type: ignore[index, arg-type]


def _masked_by(bias: Tensor, problem: Problem) -> Tensor:
    mask = _hide_later(bias, problem).expand(len(problem.query), -1, -1, -1)
    return F.scaled_dot_product_attention(problem.query, problem.key, problem.value, attn_mask=mask)


def _needs_plain_bias(problem: Problem, backward: bool) -> str | None:
    if _has_buckets(problem):
        return "would be what stock T5 does"
    return None if _terms_of(problem).bias is not None else "is for a bias"


def stock_t5(problem: Problem) -> Work:
    """The bias matrix that the T5 of Transformers computes from its buckets, as the mask."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=HEADS * HEAD_DIM, num_heads=HEADS, is_decoder=problem.causal)
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    del attention.relative_attention_bias
    attention.relative_attention_bias = partial(_embed, problem)
    length, device = problem.length, problem.device
    return lambda: _masked_by(attention.compute_bias(length, length, device=device), problem)


def _embed(problem: Problem, buckets: Tensor) -> Tensor:
    return F.embedding(buckets, _bucket_weight(problem))


def x_transformers(problem: Problem) -> Work:
    """The T5 bias of x-transformers with its fused attention, by its own modules."""
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import RelativePositionBias

    position = RelativePositionBias(scale=1.0, causal=problem.causal, heads=HEADS).to(problem.device)
    attend = Attend(causal=problem.causal, heads=HEADS, flash=True)
    length, name = problem.length, "relative_attention_bias.weight"

    def work() -> Tensor:
        bias = functional_call(position, {name: _bucket_weight(problem)}, (length, length))
        return attend(problem.query, problem.key, problem.value, attn_bias=bias)[0]

    return work


def _bucket_weight(problem: Problem) -> Tensor:
    """The table as an embedding's weight ``[buckets, heads]``."""
    return problem.scheme.bucket_table().T.contiguous()


def _has_buckets(problem: Problem) -> bool:
    return isinstance(problem.scheme, T5BiasScheme)


def _needs_buckets(problem: Problem, backward: bool) -> str | None:
    return None if _has_buckets(problem) else "is for T5's buckets"


def _x_transformers_refuses(problem: Problem, backward: bool) -> str | None:
    if importlib.util.find_spec("x_transformers") is None:
        return "is not installed: pip install -c constraints.txt -e '.[bench]'"
    return _needs_buckets(problem, backward)


# FlexAttention.


def flex(problem: Problem) -> Work:
    """Compiled FlexAttention that reads the bias from its table."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # else the compiled code of earlier lengths counts towards a limit
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    k = horizon(_terms_of(problem).bias)  # type: ignore[arg-type]
    block_mask = None
    if problem.causal:
        length = problem.length
        block_mask = create_block_mask(_sees, None, None, length, length, device=str(problem.device))
    states = problem.query, problem.key, problem.value
    if problem.device.type == "cpu":  # refused there where a gradient might be asked for
        states = tuple(state.detach() for state in states)

    def work() -> Tensor:
        bias: Tensor = problem.terms().bias  # type: ignore[assignment]

        def score(value: Tensor, batch: Tensor, head: Tensor, query_at: Tensor, key_at: Tensor) -> Tensor:
            return value + bias[head, (key_at - query_at).clamp(-k, k) + k]

        return compiled(*states, score_mod=score, block_mask=block_mask)

    return work


def _sees(batch: Tensor, head: Tensor, query_at: Tensor, key_at: Tensor) -> Tensor:
    return key_at <= query_at


def _flex_refuses(problem: Problem, backward: bool) -> str | None:
    if _terms_of(problem).bias is None:
        return "cannot mix value vectors into the output"
    if problem.device.type == "cpu":
        if backward:
            return "has no backward pass on the CPU"
        if compiler() is None:
            return "needs a C++ compiler on the CPU, and none was found (g++, clang++, or CXX)"
    return "takes no float64" if problem.query.dtype == torch.float64 else None


def compiler() -> str | None:
    """The C++ compiler that ``torch.compile`` needs on the CPU, if there is one."""
    named = os.environ.get("CXX")
    return next((path for name in (named, "g++", "clang++") if name and (path := shutil.which(name))), None)


PEERS: dict[str, Peer] = {
    "gather/scatter": Peer(lambda problem: partial(gather_scatter, problem), _takes_all),
    "vector per pair (Transformers 4)": Peer(
        # Two tables over all pairs, and the gradient of each.
        lambda problem: partial(vector_per_pair, problem), _needs_shared_vectors, extra_numbers=4 * HEAD_DIM
    ),
    "dense mask, sdpa": Peer(lambda problem: partial(dense_mask, problem), _needs_plain_bias),
    "stock T5, sdpa": Peer(stock_t5, _needs_buckets),
    "x-transformers": Peer(x_transformers, _x_transformers_refuses),
    "FlexAttention, compiled": Peer(flex, _flex_refuses),
}  # fmt: skip


@torch.no_grad()
def _terms_of(problem: Problem) -> RelativeTerms:
    return problem.terms()
