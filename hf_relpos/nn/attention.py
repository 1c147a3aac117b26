"""Multi-head attention with relative positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hf_relpos.calls import AttentionCall
from hf_relpos.config import RelPosConfig
from hf_relpos.engines import attend
from hf_relpos.errors import wrong_value
from hf_relpos.layer import RelPosLayer
from hf_relpos.masks import AttentionMask
from hf_relpos.nn.checks import check_bool, check_dropout, check_offset, check_positive_int
from hf_relpos.schemes import AttentionGeometry, SchemeConfig, Shaw


class RelativeMultiheadAttention(nn.Module):
    r"""Multi-head attention with relative positions, batch first.

    By default it has the relative key and value vectors of Shaw et al. 2018
    (https://arxiv.org/abs/1803.02155, equations 3 and 4), with ``d = clip(j - i, -k, k)`` and the attention
    weights ``p``:

    .. code-block:: text

        score_ij = q_i . (k_j + a^K[d]) / sqrt(head_dim)          output_i = sum_j p_ij (v_j + a^V[d])

    A replacement for :class:`torch.nn.MultiheadAttention` with ``batch_first=True``, whose mask conventions
    it keeps: **True hides a key**, in ``key_padding_mask`` and in ``attn_mask`` (in
    :func:`torch.nn.functional.scaled_dot_product_attention` and in Transformers' 2-D masks it is the other
    way round). It differs in that ``query`` alone means self-attention, ``need_weights`` is False by default,
    the weights come per head and before dropout, and a query that sees no key gets a zero attention output
    instead of NaN. It takes no ``average_attn_weights`` (``weights.mean(1)`` averages them over the heads), and no
    state dict of :class:`torch.nn.MultiheadAttention`, which keeps the three input projections in one matrix.

    .. code-block:: python

        attention = RelativeMultiheadAttention(256, 8, max_distance=8)
        output, _ = attention(x, key_padding_mask=ids == pad_id, is_causal=True)

        layer = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True)
        layer.self_attn = RelativeMultiheadAttention(256, 8, schemes=[T5Bias(), Shaw(max_distance=8)])

    Args:
        embed_dim: size of the queries and of the output.
        num_heads: number of heads; divides ``embed_dim``.
        max_distance: the clip distance ``k`` of the default scheme,
            ``Shaw(max_distance, init="trunc_normal")``; ignored where ``schemes`` is given.
        schemes: one or several scheme configs or names, which add up; None means the default scheme. A scheme
            config starts at zero unless its ``init`` says otherwise: then this starts as attention without
            positions.
        gate: ``"none"``, ``"head"`` (a learned factor per head) or ``"token"`` (a factor computed from each
            query) on what the schemes add; every gate starts at exactly 1.
        window: local attention: a query sees keys at most this far away. None sees all.
        causal: whether queries only ever look back. Hides later keys in each call, and lets schemes that know
            (``T5Bias``) spend all their buckets on earlier keys.
        dropout: probability with which an attention weight is dropped, in training.
        bias: whether the four projections have a bias.
        kdim: size of the keys before their projection; None means ``embed_dim``.
        vdim: size of the values before their projection; None means ``embed_dim``.
        engine: how attention is computed: ``"auto"`` or the name of an engine.
        device: of the parameters; None means the default device.
        dtype: of the parameters; None means the default dtype.

    Raises:
        RelPosConfigError: (a ``ValueError``) for a wrong value; names the field, the value and what is
            allowed.
    """

    # Read by `torch.nn.TransformerEncoder` and its layer: which axis comes first, and, since there is no
    # fused input projection, that their own fused kernel, which knows no relative positions, cannot stand in
    # for this module.
    batch_first = True
    _qkv_same_embed_dim = False
    in_proj_weight = None
    in_proj_bias = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_distance: int = 8,
        *,
        schemes: SchemeConfig | str | Sequence[SchemeConfig | str] | None = None,
        gate: str = "none",
        window: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        engine: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_positive_int(owner, "embed_dim", embed_dim)
        check_positive_int(owner, "num_heads", num_heads)
        if embed_dim % num_heads:
            raise wrong_value(owner, "num_heads", num_heads, f"a divisor of embed_dim={embed_dim}")
        for field, size in (("kdim", kdim), ("vdim", vdim)):
            if size is not None:
                check_positive_int(owner, field, size)
        check_dropout(owner, dropout)
        check_bool(owner, "causal", causal)
        check_bool(owner, "bias", bias)
        if schemes is None:
            schemes = Shaw(max_distance=max_distance, init="trunc_normal")
        several = [schemes] if isinstance(schemes, (str, SchemeConfig)) else schemes
        # There is nothing native to keep in a module that starts from scratch.
        config = RelPosConfig(schemes=several, native="drop", gate=gate, window=window, engine=engine)

        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.causal = causal
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(self.kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(self.vdim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.relpos = RelPosLayer(config, AttentionGeometry(num_heads, self.head_dim, causal))
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Give every parameter a start value: Xavier for projections, zero for biases, the schemes theirs."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for module in self.relpos.modules():
            reset = getattr(module, "reset_relpos_parameters", None)
            if callable(reset):
                reset()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        query_offset: int | Tensor = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: ``[batch, queries, embed_dim]``.
            key: ``[batch, keys, kdim]``; None means ``query``: self-attention.
            value: ``[batch, keys, vdim]``; None means ``key``.
            key_padding_mask: ``[batch, keys]``; bool, True **hides** the key; or float, added to its scores.
            need_weights: whether to return the attention weights, which takes the memory of all of them.
            attn_mask: ``[queries, keys]``, ``[batch * heads, queries, keys]`` or
                ``[1 or batch, 1 or heads, queries, keys]``; bool, True **hides** the key from the query; or
                float, added to the scores.
            is_causal: whether to hide the keys after each query. Unlike in PyTorch it acts by itself, no
                ``attn_mask`` is needed.
            query_offset: position of the first query, counted in keys: the number of cached keys when
                decoding step by step. An int, or a 0-d integer tensor where it is only known on the device.

        Returns:
            The output ``[batch, queries, embed_dim]``, and the weights ``[batch, heads, queries, keys]`` or
            None.

        Raises:
            ValueError: for tensors or masks of a wrong shape; names the shape given and those that fit.
            TypeError: for masks that are neither bool nor floating point, or an offset that is no whole
                number.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value)
        check_offset(query_offset)
        mask = AttentionMask(
            query_length=query.shape[1],
            key_length=key.shape[1],
            query_offset=query_offset,
            causal=self.causal or is_causal,
            window=self.relpos.config.window,
            padding=_tokens(key_padding_mask),
            dense=self._dense_mask(attn_mask, key_padding_mask, query, key),
        )
        queries, keys, values = (
            states.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for states in (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        )
        made = self.relpos(AttentionCall(queries, keys, values, mask))
        output, weights = attend(
            made.query,
            made.key,
            values,
            made.terms,
            mask,
            scale=self.head_dim**-0.5,
            dropout=self.dropout if self.training else 0.0,
            engine=self.relpos.config.engine,
            weights=need_weights,
        )
        if made.branch is not None:
            output = output + made.branch
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        owner = type(self).__name__
        given = {"query": (query, self.embed_dim), "key": (key, self.kdim), "value": (value, self.vdim)}
        for name, (states, size) in given.items():
            if states.ndim != 3 or states.shape[-1] != size:
                raise ValueError(
                    f"{owner}: `{name}` has shape {list(states.shape)}, but must be [batch, length, {size}]. "
                    "Unbatched input needs `unsqueeze(0)`; sizes are set by `embed_dim`, `kdim` and `vdim`."
                )
        if not (query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1] == value.shape[1]):
            raise ValueError(
                f"{owner}: `query`, `key` and `value` have shapes {list(query.shape)}, {list(key.shape)} and "
                f"{list(value.shape)}, but must have one batch size, and keys and values one length."
            )

    def _dense_mask(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor, key: Tensor
    ) -> Tensor | None:
        """What the record of masks calls dense, from PyTorch's two masks; bool padding is not part of it."""
        owner = type(self).__name__
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        shift = None
        if key_padding_mask is not None:
            if key_padding_mask.shape != (batch, keys):
                raise ValueError(
                    f"{owner}: `key_padding_mask` has shape {list(key_padding_mask.shape)}, but must be "
                    f"[batch, keys] = {[batch, keys]}."
                )
            _check_mask_dtype(owner, "key_padding_mask", key_padding_mask)
            if key_padding_mask.dtype != torch.bool:
                shift = key_padding_mask[:, None, None].expand(batch, 1, queries, keys)
        if attn_mask is None:
            return shift
        _check_mask_dtype(owner, "attn_mask", attn_mask)
        if attn_mask.ndim == 2:
            mask = attn_mask[None, None]
        elif attn_mask.ndim == 3 and attn_mask.shape[0] == batch * self.num_heads:
            mask = attn_mask.unflatten(0, (batch, self.num_heads))
        else:
            mask = attn_mask
        fits = mask.ndim == 4 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, self.num_heads)
        if not fits or mask.shape[2:] != (queries, keys):
            raise ValueError(
                f"{owner}: `attn_mask` has shape {list(attn_mask.shape)}, but must be [queries, keys] = "
                f"{[queries, keys]}, [batch * heads, queries, keys] = "
                f"{[batch * self.num_heads, queries, keys]} or [batch or 1, heads or 1, queries, keys] = "
                f"{[batch, self.num_heads, queries, keys]}."
            )
        if mask.dtype == torch.bool:
            return ~mask if shift is None else shift.masked_fill(mask, float("-inf"))
        return mask if shift is None else mask + shift

    def extra_repr(self) -> str:
        """The choices that no child module shows."""
        shown = ("embed_dim", "num_heads", "causal", "dropout")
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown)


def _tokens(key_padding_mask: Tensor | None) -> Tensor | None:
    """A bool padding mask with its sense turned: True where there is a token."""
    if key_padding_mask is None or key_padding_mask.dtype != torch.bool:
        return None
    return ~key_padding_mask


def _check_mask_dtype(owner: str, field: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{owner}: `{field}` is {mask.dtype}, but must be bool (True hides a key) or floating point "
            "(added to the scores). A 0/1 mask with 1 for tokens becomes one with `mask == 0`."
        )
