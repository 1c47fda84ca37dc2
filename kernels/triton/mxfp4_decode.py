"""day0::mxfp4_decode in Triton: the converters' look-up, whose rows are the scale bytes themselves."""

from __future__ import annotations

from functools import cache

import torch

from day0.converters.tables import BF16, FP16, FP32, Table
from day0.converters.tiers import triton
from day0.converters.tiers._tier import GROUP_BYTES
from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit
from day0.kernels.triton._triton import has_triton
from day0.reference_ops.mxfp4_decode import reference, validate

__all__ = ["IMPLEMENTATIONS"]

LAYOUTS = {torch.bfloat16: BF16, torch.float16: FP16, torch.float32: FP32}


@on_its_device
def decode(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str = "low_first") -> torch.Tensor:
    """Return values [..., I] in `dtype`."""
    validate(codes, scales, dtype, order)
    table = _table(dtype)
    out = torch.empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=dtype, device=codes.device)
    rows_GB = out.view(table.pairs.dtype).view(-1, GROUP_BYTES)
    triton.decode(codes.contiguous().view(-1, GROUP_BYTES), scales.contiguous().view(-1), table, rows_GB)
    return out


@cache
def _table(dtype: torch.dtype) -> Table:
    """Return what every byte becomes under every scale byte, by the reference: beyond the dtype that is infinity."""
    codes = torch.arange(256, dtype=torch.uint8).expand(256, 256)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 256 // GROUP_BYTES)
    layout = LAYOUTS[dtype]
    pairs = reference(codes, scales, dtype).view({16: torch.int32, 32: torch.int64}[layout.bits])
    unknown = torch.zeros(256, 16, dtype=torch.bool)
    return Table(layout=layout, pairs=pairs, exact=unknown, subnormal=unknown, offset=127)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::mxfp4_decode",
        contract=2,
        id="triton",
        version="1.0",
        kind="kernel",
        run=decode,
        why="the sixteen values under a scale byte travel in registers: as quick as a copy",
        devices=("cuda",),
        constraints=Constraints(
            dtypes=frozenset({"uint8", "bfloat16", "float16", "float32"}),
            arguments={"order": Limit(one_of=("low_first",))},
        ),
        predicate=has_triton,
        rank=50,
    ),
)
