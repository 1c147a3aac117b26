"""A relative position bias, to add to the scores of any attention."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from hf_relpos.config import RelPosConfig
from hf_relpos.engines.offsets import spread
from hf_relpos.errors import wrong_value
from hf_relpos.masks import AttentionMask
from hf_relpos.nn.checks import check_bool, check_offset, check_positive_int
from hf_relpos.schemes import AttentionGeometry, ClippedBias, SchemeConfig


class RelativePositionBias(nn.Module):
    """A learned bias per head and offset, as a tensor to be added to the attention scores.

    The offset is ``key position - query position``. The default is one number for each offset up to
    ``max_distance``, and one for all beyond on either side (the clipping of Shaw et al. 2018, section 3.2).

    .. code-block:: python

        bias = RelativePositionBias(num_heads=8)
        scaled_dot_product_attention(q, k, v, attn_mask=bias(q.shape[-2], k.shape[-2]))

    The tensor has ``query_length * key_length`` numbers per head; :class:`RelativeMultiheadAttention` with
    the same scheme adds the same numbers without it.

    Args:
        num_heads: number of heads.
        max_distance: the clip distance of the default scheme,
            ``ClippedBias(max_distance, init="trunc_normal")``; ignored where ``scheme`` is given.
        scheme: another scheme that is only a bias, such as ``T5Bias()``, as a config or a name.
        causal: whether the attention only looks back, for schemes that then use their table differently
            (``T5Bias``: all buckets for earlier keys). It hides nothing: masking stays with the attention.
        device: of the parameters; None means the default device.
        dtype: of the parameters; None means the default dtype.

    Raises:
        RelPosConfigError: (a ``ValueError``) for a wrong value, or a scheme that is more than a bias.
    """

    def __init__(
        self,
        num_heads: int,
        max_distance: int = 128,
        *,
        scheme: SchemeConfig | str | None = None,
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_positive_int(owner, "num_heads", num_heads)
        check_bool(owner, "causal", causal)
        if scheme is None:
            scheme = ClippedBias(max_distance=max_distance, init="trunc_normal")
        if not isinstance(scheme, (str, SchemeConfig)):
            raise wrong_value(owner, "scheme", scheme, "a scheme config or a scheme's name, and one only")
        # The config turns names into scheme configs, and says which names there are.
        (config,) = RelPosConfig(schemes=[scheme]).scheme_configs
        if config.parts != {"bias"}:
            raise wrong_value(
                owner,
                "scheme",
                config,
                "a scheme that is only a bias, such as T5Bias or ClippedBias: all else acts inside attention, "
                "and RelativeMultiheadAttention has it",
            )
        self.num_heads = num_heads
        # A bias has nothing to do with the size of a head.
        self.scheme = config.build(AttentionGeometry(num_heads, 1, causal))
        # Holds nothing; tells device and dtype where the scheme has no parameter that would.
        self.register_buffer("like", torch.empty(0), persistent=False)
        self.to(device=device, dtype=dtype)

    def forward(self, query_length: int, key_length: int | None = None, query_offset: int | Tensor = 0) -> Tensor:
        """The bias of every query and key.

        Args:
            query_length: number of queries.
            key_length: number of keys; None means as many as queries.
            query_offset: position of the first query, counted in keys: the number of cached keys when
                decoding step by step. An int, or a 0-d integer tensor where it is only known on the device.

        Returns:
            ``[heads, query_length, key_length]``, in the module's dtype.

        Raises:
            ValueError: if a length is not a whole number of at least 1.
            TypeError: if the offset is not a whole number.
        """
        key_length = query_length if key_length is None else key_length
        check_positive_int(type(self).__name__, "query_length", query_length)
        check_positive_int(type(self).__name__, "key_length", key_length)
        check_offset(query_offset)
        reach = AttentionMask(query_length, key_length, query_offset).reach
        like = next(chain(self.scheme.parameters(), self.buffers()))
        table: Tensor = self.scheme.tables(reach, like).bias  # type: ignore[assignment]
        rows = table[:, None].expand(self.num_heads, query_length, table.shape[-1])
        return spread(rows, key_length, query_offset).contiguous().to(like.dtype)

    def extra_repr(self) -> str:
        """The choice that no child module shows."""
        return f"num_heads={self.num_heads}"
