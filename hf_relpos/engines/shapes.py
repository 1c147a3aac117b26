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
    if key.shape != (batch, key_heads, keys, dim):
        raise _misfit("key", key, (batch, key_heads, keys, dim))
    if value.shape != (batch, key_heads, keys, value_dim):
        raise _misfit("value", value, (batch, key_heads, keys, value_dim))
    for name, table, columns in (
        ("bias", terms.bias, ()), ("native bias", terms.native_bias, ()),
        ("table on the query", terms.query, (dim,)), ("table on the key", terms.key, (dim,)),
        ("table on the value", terms.value, (value_dim,)),
    ):  # fmt: skip
        if table is None:
            continue
        tables, rows, *_ = table.shape
        fitting = (1 if tables == 1 else heads, rows if rows % 2 else rows + 1, *columns)
        if table.shape != fitting:
            raise _misfit(name, table, fitting)
    if terms.gate is not None:
        fitting = (1 if terms.gate.shape[0] == 1 else batch, heads, queries)
        if terms.gate.shape != fitting:
            raise _misfit("gate", terms.gate, fitting)


def _misfit(name: str, tensor: Tensor, shape: tuple[int, ...]) -> ValueError:
    return ValueError(f"The {name} has shape {list(tensor.shape)}, but must have {list(shape)}.")
