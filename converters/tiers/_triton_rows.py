"""What a block of FP8 shares, found on a GPU from the scale bytes alone: one launch, and nothing waits for the host.

Shape suffixes: R rows, G groups of a row, M, N blocks.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch

from day0.converters.blocks import ALL_CODES, LEAST_SCALE, group_window
from day0.converters.tables import E4M3, HIGHEST, LOWEST, NAN_ROW

__all__ = ["block_rows"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

GROUPS_OF_A_BLOCK = 4
"""128 columns."""
BLOCKS, ROWS, WARPS = 16, 32, 4
"""Blocks side by side in one program, and rows where a block is one row high."""


def block_rows(
    bytes_RG: torch.Tensor, height: int, scales_MN: torch.Tensor, rows_RG: torch.Tensor, unsettled: torch.Tensor
) -> None:
    """Write the scale of every block, float32, and the row of the FP8 table for every group, uint8.

    `height` is 128, or 1. Where a scale byte of a block is NaN, or they lie so far apart that it depends on the codes
    whether a value stays exact and normal, `unsettled`, int32 [1], becomes 1, and what was written is of no use.
    """
    rows, groups = bytes_RG.shape
    if not bytes_RG.numel():
        return
    blocks = -(-groups // GROUPS_OF_A_BLOCK)
    _, normal, high = group_window(E4M3, ALL_CODES)
    tile = height if height > 1 else ROWS
    _kernel()[(-(-rows // tile), -(-blocks // BLOCKS))](
        bytes_RG.contiguous(),
        scales_MN,
        rows_RG,
        unsettled,
        rows,
        groups,
        blocks,
        LEAST_SCALE,
        normal,
        high,
        LOWEST,
        HIGHEST,
        NAN_ROW,
        TALL=height > 1,
        ROWS=tile,
        BLOCKS=BLOCKS,
        num_warps=WARPS,
    )


@functools.cache
def _kernel() -> Any:
    """Return the kernel. Triton is imported at the first call."""
    global tl
    triton = import_module("triton")
    tl = import_module("triton.language")

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is imported by name
    def settle(  # type: ignore[no-untyped-def] # noqa: ANN202 - Triton's own language
        scale_bytes,  # noqa: ANN001
        scales,  # noqa: ANN001
        table_rows,  # noqa: ANN001
        unsettled,  # noqa: ANN001
        rows,  # noqa: ANN001
        groups,  # noqa: ANN001
        blocks,  # noqa: ANN001
        least,  # noqa: ANN001
        normal,  # noqa: ANN001
        high,  # noqa: ANN001
        lowest,  # noqa: ANN001
        highest,  # noqa: ANN001
        nan_row,  # noqa: ANN001
        TALL: tl.constexpr,
        ROWS: tl.constexpr,
        BLOCKS: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
        block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
        group = block[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        inside = (row < rows) & (group < groups)
        byte = tl.load(scale_bytes + row * groups + group, mask=inside, other=0).to(tl.int32)
        largest = tl.max(byte, 2)
        smallest = tl.min(tl.where(inside, byte, 255), 2)
        if TALL:
            largest = tl.max(largest, 0)[None, :]
            smallest = tl.min(smallest, 0)[None, :]
        scale = tl.maximum(largest - 127 - high, least)
        there = tl.program_id(0).to(tl.int64) * (1 if TALL else ROWS) + tl.arange(0, 1 if TALL else ROWS)[:, None]
        real = (block[None, :] < blocks) & (there < (tl.cdiv(rows, ROWS) if TALL else rows))
        tl.store(
            scales + there * blocks + block[None, :], ((scale + 127) << 23).to(tl.float32, bitcast=True), mask=real
        )
        open_ = real & ((largest == 255) | (scale > smallest - 127 - normal))
        if tl.max(tl.max(open_.to(tl.int32), 1), 0) > 0:
            tl.store(unsettled, 1)
        k = byte - 127 - scale[:, :, None]
        k = tl.minimum(tl.maximum(k, lowest), highest) - lowest
        k = tl.where(byte == 255, nan_row, k)
        tl.store(table_rows + row * groups + group, k.to(tl.uint8), mask=inside)

    return settle
