"""Four bits to FP8 with the scales of a layout on a GPU, in one or two launches: nothing waits for the host.

Shape suffixes: R rows, P packed bytes, G groups of a row, M, N blocks.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch

from day0.converters.blocks import ALL_CODES, LEAST_SCALE, group_window
from day0.converters.tables import E4M3, HIGHEST, LOWEST, NAN_ROW
from day0.converters.tiers._triton_words import ONE_BYTE, words_of

__all__ = ["scaled"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
settle: Any = None
pick: Any = None

TALL_BLOCKS, ROWS, BLOCKS, WARPS = 4, 4, 8, 4
"""Blocks of 128 x 128 of one program that looks at scales; rows and blocks of 128 columns of one that looks up."""
BLOCK_ROWS = 128


def scaled(
    codes_RP: torch.Tensor,
    bytes_RG: torch.Tensor,
    height: int,
    scales: torch.Tensor,
    out_RC: torch.Tensor,
    unsettled: torch.Tensor,
) -> None:
    """Write e4m3 values, as bytes, and their scales: float32 of blocks of `height` rows (128 or 1) and 128 columns.

    With height 0 the scale bytes stay as they are. Where a scale byte of a block is NaN, or they lie so far apart that it
    depends on the codes whether a value stays exact and normal, `unsettled`, int32 [1], becomes 1, and what was written
    is of no use.
    """
    rows, groups = bytes_RG.shape
    if not bytes_RG.numel():
        return
    codes_RP, bytes_RG = codes_RP.contiguous(), bytes_RG.contiguous()
    blocks = -(-groups // 4)
    _, normal, high = group_window(E4M3, ALL_CODES)
    limits = (LEAST_SCALE, normal, high)
    shape = (rows, groups, blocks)
    find, look = _kernels()
    if height > 1:
        grid = (-(-rows // BLOCK_ROWS), -(-blocks // TALL_BLOCKS))
        find[grid](bytes_RG, scales, unsettled, *shape, *limits, ROWS=BLOCK_ROWS, BLOCKS=TALL_BLOCKS, num_warps=WARPS)
    words = bool(torch.version.cuda) and codes_RP.data_ptr() % 4 == 0 and out_RC.data_ptr() % 8 == 0
    table, codes, out = words_of(codes_RP.device), codes_RP, out_RC
    if words:
        codes, out = codes_RP.view(torch.int32), out_RC.view(torch.int64)
    look[(-(-rows // ROWS), -(-blocks // BLOCKS))](
        codes, bytes_RG, scales, table, out, unsettled, *shape, *limits, LOWEST, HIGHEST, NAN_ROW, ONE_BYTE,
        HEIGHT=height, WORDS=words, ROWS=ROWS, BLOCKS=BLOCKS, num_warps=WARPS,
    )  # fmt: skip


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Return the kernel that finds the scales of tall blocks, and the one that looks up. Imports Triton."""
    global tl, settle, pick
    triton = import_module("triton")
    tl = import_module("triton.language")
    settle, pick = _settle(triton), _pick(triton)

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is imported by name
    def find(  # type: ignore[no-untyped-def] # noqa: ANN202 - Triton's own language
        scale_bytes, scales, unsettled, rows, groups, blocks, least, normal, high,  # noqa: ANN001
        ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
        block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
        group = block[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        inside = (row < rows) & (group < groups)
        byte = tl.load(scale_bytes + row * groups + group, mask=inside, other=0).to(tl.int32)
        largest = tl.max(tl.max(byte, 2), 0)
        smallest = tl.min(tl.min(tl.where(inside, byte, 255), 2), 0)
        settle(
            scales + tl.program_id(0) * blocks + block,
            block < blocks,
            largest,
            smallest,
            unsettled,
            least,
            normal,
            high,
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def look(  # type: ignore[no-untyped-def] # noqa: ANN202
        codes, scale_bytes, scales, table, out, unsettled, rows, groups, blocks, least, normal, high,  # noqa: ANN001
        lowest, highest, nan_row, ASM: tl.constexpr,  # noqa: ANN001
        HEIGHT: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        rows_ = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
        group = block[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        inside = (rows_[:, None, None] < rows) & (group < groups)
        at = rows_[:, None, None] * groups + group
        byte = tl.load(scale_bytes + at, mask=inside, other=0).to(tl.int32)
        if HEIGHT == 0:
            tl.store(scales + at, byte.to(tl.uint8), mask=inside)
            # The row of exponent 0: the scales say all the rest.
            row = byte * 0 - lowest
        else:
            real = (rows_[:, None] < rows) & (block[None, :] < blocks)
            if HEIGHT == 1:
                smallest = tl.min(tl.where(inside, byte, 255), 2)
                to = scales + rows_[:, None] * blocks + block[None, :]
                scale = settle(to, real, tl.max(byte, 2), smallest, unsettled, least, normal, high)
            else:
                bits = tl.load(scales + (rows_ // HEIGHT)[:, None] * blocks + block[None, :], mask=real, other=1.0)
                scale = (bits.to(tl.int32, bitcast=True) >> 23) - 127
            k = tl.minimum(tl.maximum(byte - 127 - scale[:, :, None], lowest), highest) - lowest
            row = tl.where(byte == 255, nan_row, k)
        pick(codes, table, out, at, inside, row, ASM, WORDS)

    return find, look


def _settle(triton: Any) -> Any:
    @triton.jit  # type: ignore[untyped-decorator]
    def settle(to, real, largest, smallest, unsettled, least, normal, high):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        scale = tl.maximum(largest - 127 - high, least)
        tl.store(to, ((scale + 127) << 23).to(tl.float32, bitcast=True), mask=real)
        open_ = real & ((largest == 255) | (scale > smallest - 127 - normal))
        # Every program that writes writes the same.
        tl.store(unsettled + largest * 0, 1, mask=open_)
        return scale

    return settle


def _pick(triton: Any) -> Any:
    @triton.jit  # type: ignore[untyped-decorator]
    def pick(codes, table, out, at, inside, row, ASM: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        if WORDS:
            words = table.to(tl.pointer_type(tl.int32)) + row * 4
            a, b, c, d = tl.load(words), tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)
            word = at[:, :, :, None] * 4 + tl.arange(0, 4)
            x = tl.load(codes + word, mask=inside[:, :, :, None], other=0)
            low, high = tl.inline_asm_elementwise(
                ASM,
                "=r,=r,r,r,r,r,r",
                [x, a[:, :, :, None], b[:, :, :, None], c[:, :, :, None], d[:, :, :, None]],
                dtype=(tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
            both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
            tl.store(out + word, both, mask=inside[:, :, :, None])
        else:
            place = tl.arange(0, 32)
            pair = tl.load(codes + at[:, :, :, None] * 16 + place // 2, mask=inside[:, :, :, None], other=0).to(
                tl.int32
            )
            code = (pair >> (4 * (place % 2))) & 15
            value = tl.load(table + row[:, :, :, None] * 16 + code, mask=inside[:, :, :, None], other=0)
            tl.store(out + at[:, :, :, None] * 32 + place, value, mask=inside[:, :, :, None])

    return pick
