"""Whether tensors fit one another: asked before a kernel of ours reads memory by their shapes."""

from __future__ import annotations

from torch import Tensor

from hf_relpos.terms import RelativeTerms


def check_shapes(query: Tensor, key: Tensor, value: Tensor, terms: RelativeTerms) -> None:
    """Refuse shapes that do not fit one another, see :func:`hf_relpos.engines.eager.attend` for those that do.

    Raises:
        ValueError: names the tensor, its shape and the shape that fits.
    """
    batch, heads, queries, dim = query.shape
    _, key_heads, keys, _ = key.shape
    value_dim = value.shape[-1]
    if heads % max(key_heads, 1) or (heads and not key_heads):
        raise ValueError(f"{heads} heads can't share {key_heads} heads of the keys: the latter must divide them.")
    _check("key", key, (batch, key_heads, keys, dim))
    _check("value", value, (batch, key_heads, keys, value_dim))
    for name, table, columns in (
        ("bias", terms.bias, ()), ("native bias", terms.native_bias, ()),
        ("table on the query", terms.query, (dim,)), ("table on the key", terms.key, (dim,)),
        ("table on the value", terms.value, (value_dim,)),
    ):  # fmt: skip
        if table is not None:
            tables, rows = table.shape[:2]
            odd = rows if rows % 2 else rows + 1
            _check(name, table, (1 if tables == 1 else heads, odd, *columns))
    if terms.gate is not None:
        _check("gate", terms.gate, (1 if len(terms.gate) == 1 else batch, heads, queries))


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"The {name} has shape {list(tensor.shape)}, but must have {list(shape)}.")
