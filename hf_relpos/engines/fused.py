"""The engine with kernels of its own: C++ for the CPU (`cpu/`), Triton for CUDA (`cuda/`). What they share is here.

Each kind of hardware has a record like that of an engine; it is asked after what is said here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_relpos.compat import pytorch
from hf_relpos.engines.cpu import fused as cpu
from hf_relpos.engines.cuda import fused as cuda
from hf_relpos.engines.engine import PLAIN, Case, Engine
from hf_relpos.masks import AttentionMask
from hf_relpos.terms import RelativeTerms, add_tables

# By the type of device.
HARDWARE: dict[str, Engine] = {"cpu": cpu.ENGINE, "cuda": cuda.ENGINE}


def refuses(case: Case) -> str | None:
    """What of a case this engine cannot take exactly, in words; None if it takes it."""
    mask = case.mask
    compiling = torch.compiler.is_compiling()
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    if torch.compiler.is_exporting():
        return "torch.export"
    if pytorch.is_transformed():
        return "transforms of torch.func"
    device = case.query.device
    if device.type not in HARDWARE:
        return f"tensors on {device.type!r}"
    for tensor in (case.query, case.key, case.value, *case.terms, mask.padding):
        if tensor is None:
            continue
        if not compiling and type(tensor) not in PLAIN:
            return f"tensors of type {type(tensor).__name__}"
        if tensor.device != device:
            return f"tensors on {str(tensor.device)!r} beside queries on {str(device)!r}"
    if mask.pattern is not None or mask.dense is not None:
        return "masks other than causality, padding and a window"
    if not isinstance(mask.query_offset, (int, torch.SymInt)):
        return "a position that is only known on the device"
    if not compiling and case.has_tangents:
        return "forward-mode differentiation"
    return HARDWARE[device.type].refuses(case)


def pays_off(case: Case) -> bool:
    """Whether the hardware is made use of; where there is nothing for it, another question is why."""
    hardware = HARDWARE.get(case.device)
    return hardware is None or hardware.pays_off(case)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: RelativeTerms,
    mask: AttentionMask,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """Attention with relative terms, for all that :func:`refuses` does not refuse.

    Shapes, dtypes and result are those of :func:`hf_relpos.engines.eager.attend`, without weights. The hardware is
    given states of one dtype, terms in at least float32, and one bias where no gate tells two apart.

    Raises:
        ValueError: if the shapes do not fit one another.
    """
    dtype = query.dtype
    if not dtype == key.dtype == value.dtype:
        widest = Case(query, key, value, terms, mask).dtype
        states = (query.to(widest), key.to(widest), value.to(widest))
        return attend(*states, terms, mask, scale=scale, dropout=dropout)[0].to(dtype), None
    terms = terms.to(torch.promote_types(dtype, torch.float32))
    if terms.gate is None and terms.native_bias is not None:
        terms = terms._replace(bias=add_tables(terms.bias, terms.native_bias), native_bias=None)
    hardware = HARDWARE[query.device.type]
    output, _ = hardware.attend(query, key, value, terms, mask, scale=scale, dropout=dropout)
    return output, None


ENGINE = Engine("fused", attend, refuses, pays_off, guards=True)
