"""day0::fused_add_rms_norm in Triton: both rows are read once, the sum is written and stays in registers.

Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, Limit, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, LARGEST_ROW, has_triton, rows_of_tile, triton_and_language
from day0.reference_ops.fused_add_rms_norm import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
unit_rows: Any = None

TILES = {"elements": 4096, "warps": 8}
"""Values that one program normalises, where a row is not longer."""
CHOICES = {"elements": (1024, 2048, 4096, 8192), "warps": (4, 8, 16)}


@cache
def _kernel() -> Any:
    global tl, unit_rows
    triton, tl = triton_and_language()
    unit_rows = functions().unit_rows

    @triton.jit
    def add_normalise(
        x,
        residual,
        weight,
        out,
        total,
        rows,
        columns,
        eps,
        ROUND: tl.constexpr,
        ROWS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None] * columns + column[None, :]
        one = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        other = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        # What is normalised is the sum as it is stored.
        added = (one + other).to(total.dtype.element_ty)
        tl.store(total + at, added, mask=inside)
        normed = unit_rows(added.to(tl.float32), columns, eps)
        if ROUND:
            normed = normed.to(out.dtype.element_ty).to(tl.float32)
        factor = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(out + at, (normed * factor[None, :]).to(out.dtype.element_ty), mask=inside)

    return add_normalise


@on_its_device
def add_normalise(
    x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised sum and the sum, both [..., D] in the dtype of x."""
    validate(x_XD, residual_XD, weight_D, eps, round_first)
    x_XD, residual_XD, weight_D = x_XD.contiguous(), residual_XD.contiguous(), weight_D.contiguous()
    out_XD, sum_XD = torch.empty_like(x_XD), torch.empty_like(x_XD)
    columns = x_XD.shape[-1]
    count = x_XD.numel() // columns
    if count:
        tile = rows_of_tile(columns, **sizes("fused_add_rms_norm", TILES, x_XD.device))
        _kernel()[(-(-count // tile.rows),)](
            x_XD,
            residual_XD,
            weight_D,
            out_XD,
            sum_XD,
            count,
            columns,
            eps,
            ROUND=round_first,
            ROWS=tile.rows,
            BLOCK=tile.columns,
            num_warps=tile.warps,
        )
    return out_XD, sum_XD


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::fused_add_rms_norm",
        contract=1,
        id="triton",
        version="1.0",
        kind="kernel",
        run=add_normalise,
        why="both rows are read once, and the sum is normalised before it leaves the registers",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=FLOATS, arguments={"x": TensorLimit(sizes={-1: Limit(at_most=LARGEST_ROW)})}
        ),
        predicate=has_triton,
        rank=50,
    ),
)
