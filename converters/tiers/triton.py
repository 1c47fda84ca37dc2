"""The same look-ups on a GPU, in Triton: bounded by memory, where tables in eager torch are bounded by launches.

NVIDIA's GPUs choose bytes by four-bit selectors in one instruction (PTX `prmt`), and a packed word is eight selectors:
the sixteen values of a row travel in registers. Other GPUs gather them, value by value, from their nearest cache.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group, R rows of a table, W words of 32 bits.
"""

from __future__ import annotations

import functools
from importlib import import_module, util
from typing import Any

import torch

from day0.converters.tables import Table
from day0.converters.tiers._tier import Tier

__all__ = ["TIER", "decode"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

GROUPS_OF_A_PROGRAM, WARPS = 128, 4
"""0.99 of the speed of a copy to FP8 and 0.93 to BF16 on an H200; from 1024 groups on it is slower."""

_PICK = """
    and.b32 s0, {x}, 0x7777;
    shr.b32 s1, {x}, 16;
    and.b32 s1, s1, 0x7777;
    shl.b32 x4, {x}, 4;
    prmt.b32 m0, x4, {x}, 0xD9C8;
    prmt.b32 m1, x4, {x}, 0xFBEA;
"""
"""Selectors of the low and the high four codes, and masks of the bytes whose code has its sign bit set."""

_LOOK = """
    prmt.b32 p0, {0}, {1}, s0;
    prmt.b32 p1, {0}, {1}, s1;
    prmt.b32 n0, {2}, {3}, s0;
    prmt.b32 n1, {2}, {3}, s1;
    lop3.b32 {low}, m0, n0, p0, 0xCA;
    lop3.b32 {high}, m1, n1, p1, 0xCA;
"""
"""Eight bytes from two words for codes 0 to 7 and two for 8 to 15."""

_REGISTERS = "    .reg .b32 s0, s1, x4, m0, m1, p0, p1, n0, n1, l0, l1, h0, h1;"
ONE_BYTE = "\n".join(
    ("{", _REGISTERS, _PICK.format(x="$2"), _LOOK.format("$3", "$4", "$5", "$6", low="$0", high="$1"), "}")
)
TWO_BYTES = "\n".join(
    (
        "{",
        _REGISTERS,
        _PICK.format(x="$4"),
        _LOOK.format("$5", "$6", "$7", "$8", low="l0", high="l1"),
        _LOOK.format("$9", "$10", "$11", "$12", low="h0", high="h1"),
        *(f"    prmt.b32 ${word}, l{word // 2}, h{word // 2}, {('0x5140', '0x7362')[word % 2]};" for word in range(4)),
        "}",
    )
)


def decode(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    """Look up on a GPU; see `Decode`."""
    groups = codes_GB.shape[0]
    if not groups:
        return
    kernels = _kernels()
    grid = (-(-groups // GROUPS_OF_A_PROGRAM),)
    size = table.layout.bits // 8
    words = {1: ONE_BYTE, 2: TWO_BYTES}.get(size, "")
    if words and torch.version.cuda and codes_GB.data_ptr() % 4 == 0 and out_GB.data_ptr() % 8 == 0:
        look_RW, out = _words(table, codes_GB.device), out_GB.view(torch.int64)
        permute = kernels["permute one" if size == 1 else "permute two"]
        permute[grid](codes_GB.view(torch.int32), rows_G, look_RW, out, groups, words, BLOCK=GROUPS_OF_A_PROGRAM, num_warps=WARPS)  # fmt: skip
        return
    narrow = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    look = _values(table, codes_GB.device)
    kernels["gather"][grid](codes_GB, rows_G, look, out_GB.view(narrow), groups, BLOCK=GROUPS_OF_A_PROGRAM)


def _sixteen(table: Table) -> torch.Tensor:
    """Return what each of the sixteen codes becomes in every row, [R, 16]."""
    narrow = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[table.layout.bits]
    rows = len(table.pairs)
    # As the low nibble, under a high one of zero.
    return table.pairs[:, :16].contiguous().view(narrow).view(rows, 16, 2)[..., 0].contiguous()


@functools.lru_cache(maxsize=32)
def _values(table: Table, device: torch.device) -> torch.Tensor:
    return _sixteen(table).to(device)


@functools.lru_cache(maxsize=32)
def _words(table: Table, device: torch.device) -> torch.Tensor:
    """Return [R, W] int32: four words of the lowest bytes of codes 0 to 15, then four of the next ones."""
    rows, size = len(table.pairs), table.layout.bits // 8
    bytes_R16S = _sixteen(table).view(torch.uint8).view(rows, 16, size)
    return bytes_R16S.permute(0, 2, 1).reshape(rows, 16 * size).clone().view(torch.int32).to(device)


@functools.cache
def _kernels() -> dict[str, Any]:
    """Return the kernels by name. Triton is imported at the first call."""
    global tl
    triton = import_module("triton")
    tl = import_module("triton.language")

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is imported by name
    def permute_one(codes, rows, look, out, groups, ASM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - Triton's own language
        g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        at = g[:, None] * 4 + tl.arange(0, 4)[None, :]
        inside = g < groups
        x = tl.load(codes + at, mask=inside[:, None], other=0)
        row = look + tl.load(rows + g, mask=inside, other=0).to(tl.int32) * 4
        a, b, c, d = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        low, high = tl.inline_asm_elementwise(
            ASM,
            "=r,=r,r,r,r,r,r",
            [x, a[:, None], b[:, None], c[:, None], d[:, None]],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        tl.store(out + at, both, mask=inside[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def permute_two(codes, rows, look, out, groups, ASM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = g < groups
        x = tl.load(codes + g[:, None] * 4 + tl.arange(0, 4)[None, :], mask=inside[:, None], other=0)
        row = look + tl.load(rows + g, mask=inside, other=0).to(tl.int32) * 8
        a, b, c, d = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        e, f, h, i = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
        q0, q1, q2, q3 = tl.inline_asm_elementwise(
            ASM,
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r",
            [x, a[:, None], b[:, None], c[:, None], d[:, None], e[:, None], f[:, None], h[:, None], i[:, None]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        first = (q1.to(tl.int64) << 32) | (q0.to(tl.int64) & 0xFFFFFFFF)
        second = (q3.to(tl.int64) << 32) | (q2.to(tl.int64) & 0xFFFFFFFF)
        # Joined, a thread stores 64 bytes in a row.
        both = tl.reshape(tl.join(first, second), (BLOCK, 8))
        tl.store(out + g[:, None] * 8 + tl.arange(0, 8)[None, :], both, mask=inside[:, None])

    @triton.jit  # type: ignore[untyped-decorator]
    def gather(codes, rows, look, out, groups, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        g = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = (g < groups)[:, None]
        place = tl.arange(0, 32)[None, :]
        pair = tl.load(codes + g[:, None] * 16 + place // 2, mask=inside, other=0).to(tl.int32)
        row = tl.load(rows + g, mask=g < groups, other=0).to(tl.int32)[:, None]
        value = tl.load(look + row * 16 + ((pair >> (4 * (place % 2))) & 15))
        tl.store(out + g[:, None] * 32 + place, value, mask=inside)

    return {"permute one": permute_one, "permute two": permute_two, "gather": gather}


def _missing(device: str) -> str:
    if device != "cuda":
        return f"it is for GPUs, and the weights lie on {device}"
    if util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if torch.cuda.is_available() else "there is no GPU"


TIER = Tier(
    name="triton",
    summary="tables in registers of a GPU, built on first use",
    missing=_missing,
    decode=decode,
    forks=False,
)
