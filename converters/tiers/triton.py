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
from day0.converters.tiers._triton_scaled import scaled
from day0.converters.tiers._triton_words import ONE_BYTE, TWO_BYTES, table_values, table_words
from day0.devices.current import on_its_device

__all__ = ["TIER", "decode"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

GROUPS_OF_A_PROGRAM, WARPS = 128, 4
"""0.99 of the speed of a copy to FP8 and 0.93 to BF16 on an H200; from 1024 groups on it is slower."""


@on_its_device
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
        look_RW, out = table_words(table, codes_GB.device), out_GB.view(torch.int64)
        permute = kernels["permute one" if size == 1 else "permute two"]
        permute[grid](codes_GB.view(torch.int32), rows_G, look_RW, out, groups, words, BLOCK=GROUPS_OF_A_PROGRAM, num_warps=WARPS)  # fmt: skip
        return
    narrow = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
    look = table_values(table, codes_GB.device)
    kernels["gather"][grid](codes_GB, rows_G, look, out_GB.view(narrow), groups, BLOCK=GROUPS_OF_A_PROGRAM)


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
    scaled=scaled,
    forks=False,
)
