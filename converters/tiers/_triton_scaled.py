"""Four bits to FP8 with the scales of a layout on a GPU, in one or two launches: nothing waits for the host.

Scales of blocks come from scale bytes alone, so a program that has all bytes of its blocks finds their scales and looks
up in one go (`at_once`): nothing is read twice, and no place is divided into a row and a column.

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
from day0.devices.current import on_its_device

__all__ = ["scaled"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
settle: Any = None
packed: Any = None
pick: Any = None

BLOCK_ROWS = 128
"""Rows of a block with a scale for 128 x 128 values."""
TILES = {
    "at_once": 1,
    "rows": 8,
    "blocks": 8,
    "flat_warps": 2,
    "tall": 1,
    "tall_warps": 8,
    "find": 8,
    "across": 32,
    "groups": 256,
    "warps": 4,
}
"""Whether one launch does all (else the first finds scales, the second looks up); rows and blocks side by side of one
program of it, and warps, with scales for 1 x 128 values; blocks of 128 rows side by side, and warps for them; blocks side
by side in one program that only finds scales; groups side by side in one that looks up by them, all of its groups, and
warps."""
CHOICES: tuple[dict[str, int], ...] = (
    {"at_once": 0},
    {},
    {"tall": 2},
    {"tall": 2, "tall_warps": 16, "flat_warps": 1},
    {"tall": 2, "tall_warps": 4, "rows": 16, "flat_warps": 4},
    {"tall": 4, "tall_warps": 16, "rows": 8, "blocks": 4},
)
"""What `benchmarks/gpu/mxfp4_decode.py --tiles` measures."""
WORDS_OF_32_BITS = 1 << 29
"""From so many groups on, numbers of words need 64 bits."""


@on_its_device
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
    at_once, find, look = _kernels()
    words = bool(torch.version.cuda) and codes_RP.data_ptr() % 4 == 0 and out_RC.data_ptr() % 8 == 0
    table, codes, out = words_of(codes_RP.device), codes_RP, out_RC
    if words:
        codes, out = codes_RP.view(torch.int32), out_RC.view(torch.int64)
    limits_of_rows = (LOWEST, HIGHEST, NAN_ROW, ONE_BYTE)
    if height and TILES["at_once"]:
        tall = height > 1
        tile = (BLOCK_ROWS, TILES["tall"]) if tall else (TILES["rows"], TILES["blocks"])
        across = -(-blocks // tile[1])
        at_once[(-(-rows // tile[0]) * across,)](
            codes, bytes_RG, scales, table, out, unsettled, *shape, across, *limits, *limits_of_rows,
            TALL=tall, WORDS=words, ROWS=tile[0], BLOCKS=tile[1],
            num_warps=TILES["tall_warps" if tall else "flat_warps"],
        )  # fmt: skip
        return
    if height:
        find[(-(-rows // BLOCK_ROWS), -(-blocks // TILES["find"]))](
            bytes_RG, scales, unsettled, *shape, *limits,
            TALL=height > 1, ROWS=BLOCK_ROWS, BLOCKS=TILES["find"], num_warps=4,
        )  # fmt: skip
    beside = TILES["across"] if height else TILES["groups"]
    across = -(-groups // beside)
    programs = -(-rows // (TILES["groups"] // beside)) * across if height else -(-rows * groups // TILES["groups"])
    look[(programs,)](
        codes, bytes_RG, scales, table, out, *shape, across, *limits_of_rows,
        HEIGHT=height, WORDS=words, LONG=rows * groups >= WORDS_OF_32_BITS, GROUPS=TILES["groups"], BESIDE=beside,
        num_warps=TILES["warps"],
    )  # fmt: skip


@functools.cache
def _kernels() -> tuple[Any, Any, Any]:
    """Return the kernel that does all, the one that finds scales of blocks, the one that looks up. Imports Triton."""
    global tl, settle, packed, pick
    triton = import_module("triton")
    tl = import_module("triton.language")
    settle, packed, pick = _settle(triton), _packed(triton), _pick(triton)

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is imported by name
    def at_once(  # type: ignore[no-untyped-def] # noqa: ANN202 - Triton's own language
        codes, scale_bytes, scales, table, out, unsettled, rows, groups, blocks, across,  # noqa: ANN001
        least, normal, high, lowest, highest, nan_row,  # noqa: ANN001
        ASM: tl.constexpr, TALL: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        # Blocks side by side follow each other: so do programs that share lines of memory.
        top = (tl.program_id(0) // across).to(tl.int64) * ROWS
        first = tl.program_id(0) % across * BLOCKS
        # Codes are asked for before scales are known: then both are waited for at once.
        f = tl.arange(0, ROWS * BLOCKS * 4)
        at_row, at_group = top + f // (BLOCKS * 4), first * 4 + f % (BLOCKS * 4)
        there, g = (at_row < rows) & (at_group < groups), at_row * groups + at_group
        x = packed(codes, g, there, WORDS)
        if TALL:
            # A scale for all rows of a block: bytes stay where the look-up needs them.
            byte = tl.load(scale_bytes + g, mask=there, other=0).to(tl.int32)
            of = f % (BLOCKS * 4) // 4
            to = scales + (tl.program_id(0) // across) * blocks + first
            k = byte
            for b in tl.static_range(BLOCKS):
                largest = tl.max(tl.where(of == b, byte, 0), 0)
                smallest = tl.min(tl.where(there & (of == b), byte, 255), 0)
                settle(to + b, first + b < blocks, largest, smallest, unsettled, least, normal, high)
                k = tl.where(of == b, byte - (tl.maximum(largest - 127 - high, least) + 127), k)
            k = tl.minimum(tl.maximum(k, lowest), highest) - lowest
            k = tl.where(byte == 255, nan_row, k)
        else:
            row, block = top + tl.arange(0, ROWS), first + tl.arange(0, BLOCKS)
            group = block[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
            inside = (row < rows)[:, None, None] & (group < groups)
            byte = tl.load(scale_bytes + row[:, None, None] * groups + group, mask=inside, other=0).to(tl.int32)
            largest, smallest = tl.max(byte, 2), tl.min(tl.where(inside, byte, 255), 2)
            to = scales + row[:, None] * blocks + block[None, :]
            real = (row < rows)[:, None] & (block < blocks)[None, :]
            settle(to, real, largest, smallest, unsettled, least, normal, high)
            scale = tl.maximum(largest - 127 - high, least) + 127
            k = tl.minimum(tl.maximum(byte - scale[:, :, None], lowest), highest) - lowest
            k = tl.reshape(tl.where(byte == 255, nan_row, k), (ROWS * BLOCKS * 4,))
        pick(x, table, out, g, there, k, ASM, WORDS)

    @triton.jit  # type: ignore[untyped-decorator]
    def find(  # type: ignore[no-untyped-def] # noqa: ANN202 - Triton's own language
        scale_bytes, scales, unsettled, rows, groups, blocks, least, normal, high,  # noqa: ANN001
        TALL: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
        group = block[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        inside = (row < rows)[:, None, None] & (group < groups)
        byte = tl.load(scale_bytes + row[:, None, None] * groups + group, mask=inside, other=0).to(tl.int32)
        largest = tl.max(byte, 2)
        smallest = tl.min(tl.where(inside, byte, 255), 2)
        if TALL:
            to = scales + tl.program_id(0) * blocks + block
            settle(to, block < blocks, tl.max(largest, 0), tl.min(smallest, 0), unsettled, least, normal, high)
        else:
            to = scales + row[:, None] * blocks + block[None, :]
            real = (row < rows)[:, None] & (block < blocks)[None, :]
            settle(to, real, largest, smallest, unsettled, least, normal, high)

    @triton.jit  # type: ignore[untyped-decorator]
    def look(  # type: ignore[no-untyped-def] # noqa: ANN202
        codes, scale_bytes, scales, table, out, rows, groups, blocks, across, lowest, highest, nan_row,  # noqa: ANN001
        ASM: tl.constexpr, HEIGHT: tl.constexpr, WORDS: tl.constexpr, LONG: tl.constexpr, GROUPS: tl.constexpr,
        BESIDE: tl.constexpr,
    ):  # fmt: skip
        f = tl.arange(0, GROUPS)
        number = tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)
        if HEIGHT == 0:
            g = number * GROUPS + f
            inside = g < (rows.to(tl.int64) if LONG else rows) * groups
            x = packed(codes, g, inside, WORDS)
            byte = tl.load(scale_bytes + g, mask=inside, other=0).to(tl.int32)
            tl.store(scales + g, byte.to(tl.uint8), mask=inside)
            # The row of exponent 0: the scales say all the rest.
            row = byte * 0 - lowest
        else:
            # Groups of several rows: one division a program, where each group would need one.
            at_row, at_group = (
                number // across * (GROUPS // BESIDE) + f // BESIDE,
                number % across * BESIDE + f % BESIDE,
            )
            inside, g = (at_row < rows) & (at_group < groups), at_row * groups + at_group
            x = packed(codes, g, inside, WORDS)
            byte = tl.load(scale_bytes + g, mask=inside, other=0).to(tl.int32)
            block = at_row // HEIGHT * blocks + at_group // 4
            bits = tl.load(scales + block, mask=inside, other=1.0).to(tl.int32, bitcast=True)
            k = tl.minimum(tl.maximum(byte - (bits >> 23), lowest), highest) - lowest
            row = tl.where(byte == 255, nan_row, k)
        pick(x, table, out, g, inside, row, ASM, WORDS)

    return at_once, find, look


def _settle(triton: Any) -> Any:
    @triton.jit
    def settle(to, real, largest, smallest, unsettled, least, normal, high):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        scale = tl.maximum(largest - 127 - high, least)
        tl.store(to, ((scale + 127) << 23).to(tl.float32, bitcast=True), mask=real)
        open_ = real & ((largest == 255) | (scale > smallest - 127 - normal))
        # Every program that writes writes the same.
        tl.store(unsettled + largest * 0, 1, mask=open_)

    return settle


def _packed(triton: Any) -> Any:
    @triton.jit  # type: ignore[untyped-decorator]
    def packed(codes, g, inside, WORDS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        if WORDS:
            at = codes + g[:, None] * 4 + tl.arange(0, 4)[None, :]
            return tl.load(at, mask=inside[:, None], other=0)
        else:
            place = tl.arange(0, 32)[None, :]
            pair = tl.load(codes + g[:, None] * 16 + place // 2, mask=inside[:, None], other=0).to(tl.int32)
            return (pair >> (4 * (place % 2))) & 15

    return packed


def _pick(triton: Any) -> Any:
    @triton.jit  # type: ignore[untyped-decorator]
    def pick(x, table, out, g, inside, row, ASM: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        if WORDS:
            words = table.to(tl.pointer_type(tl.int32)) + row * 4
            a, b, c, d = tl.load(words), tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)
            low, high = tl.inline_asm_elementwise(
                ASM,
                "=r,=r,r,r,r,r,r",
                [x, a[:, None], b[:, None], c[:, None], d[:, None]],
                dtype=(tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
            both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
            to = out + g[:, None] * 4 + tl.arange(0, 4)[None, :]
            tl.store(to, both, mask=inside[:, None])
        else:
            value = tl.load(table + row[:, None] * 16 + x, mask=inside[:, None], other=0)
            tl.store(out + g[:, None] * 32 + tl.arange(0, 32)[None, :], value, mask=inside[:, None])

    return pick
