"""Sinusoidal absolute positions, which are computed and never end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_relpos.errors import wrong_value
from hf_relpos.nn.checks import check_dropout, check_offset, check_positive_int


class SinusoidalPositionalEncoding(nn.Module):
    """The fixed absolute encoding of Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    .. code-block:: text

        PE[pos, 2i] = sin(pos / base^(2i / embed_dim))          PE[pos, 2i + 1] = cos(pos / base^(2i /
        embed_dim))

    Computed when needed, in float64, and cast last: any length, no parameters, nothing in the checkpoint.
    With an odd ``embed_dim`` the last dimension is a sine without its cosine.

    Args:
        embed_dim: size of the embeddings it is added to.
        base: the longest wavelength is almost ``2 * pi * base`` positions; 10000 in the paper.
        dropout: probability with which an element of the sum is dropped, in training (section 5.4).

    Raises:
        RelPosConfigError: (a ``ValueError``) for a wrong value; names the field, the value and what is
            allowed.
    """

    def __init__(self, embed_dim: int, *, base: float = 10000.0, dropout: float = 0.0) -> None:
        super().__init__()
        owner = type(self).__name__
        check_positive_int(owner, "embed_dim", embed_dim)
        if not isinstance(base, (int, float)) or isinstance(base, bool) or not 1 < base < float("inf"):
            raise wrong_value(owner, "base", base, "a number above 1")
        check_dropout(owner, dropout)
        self.embed_dim = embed_dim
        self.base = float(base)
        self.dropout = nn.Dropout(dropout)

    def forward(self, embeddings: Tensor, offset: int | Tensor = 0) -> Tensor:
        """The embeddings plus the encoding of their positions.

        Args:
            embeddings: floating point ``[..., length, embed_dim]``.
            offset: position of the first embedding: the number of tokens decoded before. An int, or a 0-d
                integer tensor.

        Returns:
            The sum, in the shape and dtype of ``embeddings``.

        Raises:
            ValueError: if the shape does not fit; names the shape given and the one that does.
            TypeError: if the embeddings are not floating point, or the offset is not a whole number.
        """
        owner = type(self).__name__
        if embeddings.ndim < 2 or embeddings.shape[-1] != self.embed_dim:
            raise ValueError(
                f"{owner}: `embeddings` has shape {list(embeddings.shape)}, but must be "
                f"[..., length, embed_dim={self.embed_dim}]."
            )
        if not embeddings.is_floating_point():
            raise TypeError(
                f"{owner}: `embeddings` is {embeddings.dtype}, but must be floating point: pass embeddings, "
                "not token ids."
            )
        return self.dropout(
            embeddings
            + self.encoding(embeddings.shape[-2], offset=offset, device=embeddings.device, dtype=embeddings.dtype)
        )

    def encoding(
        self,
        length: int,
        *,
        offset: int | Tensor = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The encoding alone, ``[length, embed_dim]``, for the positions ``offset .. offset + length - 1``.

        Args:
            length: number of positions.
            offset: the first position.
            device: of the result; None means the default device.
            dtype: of the result; None means the default dtype.

        Raises:
            TypeError: if the offset is not a whole number.
        """
        check_offset(offset)
        device = torch.get_default_device() if device is None else torch.device(device)
        # float32 would lose the phase of far positions. Apple's GPUs have no float64.
        exact = torch.device("cpu") if device.type == "mps" else device
        offset = offset.to(exact) if isinstance(offset, Tensor) else offset
        positions = (torch.arange(length, device=exact) + offset).double()
        even = torch.arange(0, self.embed_dim, 2, device=exact, dtype=torch.float64)
        angles = positions[:, None] * self.base ** (-even / self.embed_dim)
        pairs = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        return pairs[:, : self.embed_dim].to(device=device, dtype=dtype or torch.get_default_dtype())

    def extra_repr(self) -> str:
        """The choices that no child module shows."""
        return f"embed_dim={self.embed_dim}, base={self.base:g}"
