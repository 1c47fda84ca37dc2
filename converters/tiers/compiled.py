"""Bit arithmetic under torch.compile: four bits are spread into lanes, and the exponent is added to what is not zero.

Right only where every result is a normal number: rows outside that go to the tables. On CUDA the tables themselves are
compiled: one kernel computes the index and looks up, and nobody has to ask first which rows there are.

Shape suffixes: G groups of 32 values, B = 16 packed bytes of a group, W = 4 words of four packed bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from day0.converters.tables import BF16, E4M3, HIGHEST, NAN_ROW, Table
from day0.converters.tiers import eager
from day0.converters.tiers._tier import Tier

__all__ = ["TIER", "decode"]

FP8_ROWS = (-5, 6)
"""Exponents k for which all codes become normal e4m3fn values."""
BF16_ROWS = (2, 252)
"""Scale bytes for which all codes become normal bfloat16 values."""
CHUNK = 1 << 16


def decode(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    """Compute, or look up where a row of the chunk needs it; see `Decode`."""
    if codes_GB.device.type == "cuda":
        _compiled("look_up")(codes_GB, rows_G, eager.on_device(table, codes_GB.device), out_GB)
        return
    whole = len(codes_GB) // CHUNK * CHUNK
    for begin in range(0, whole, CHUNK):
        part = slice(begin, begin + CHUNK)
        _chunk(codes_GB[part], rows_G[part], table, out_GB[part])
    if whole < len(codes_GB):
        # One shape is compiled, not one for every remainder.
        eager.decode(codes_GB[whole:], rows_G[whole:], table, out_GB[whole:])


def _chunk(codes_GB: torch.Tensor, rows_G: torch.Tensor, table: Table, out_GB: torch.Tensor) -> None:
    rows = _window(table)
    # int16 below: with rows of one byte the compiled loop is not vectorised, and five times as slow.
    low, high = (int(one) for one in torch.aminmax(rows_G))
    if rows is None or low < rows[0] or high > rows[1]:
        eager.decode(codes_GB, rows_G, table, out_GB)
    elif table.layout is E4M3:
        _compiled("fp8")(codes_GB.view(torch.int32), rows_G.to(torch.int16), out_GB.view(torch.int64))
    else:
        out = out_GB.view(torch.int64).view(-1, 4, 2)
        _compiled("bf16")(codes_GB.view(torch.int32), rows_G.to(torch.int16), out)


def _window(table: Table) -> tuple[int, int] | None:
    if table.layout is E4M3:
        return FP8_ROWS[0] + table.offset, FP8_ROWS[1] + table.offset
    return BF16_ROWS if table.layout is BF16 else None


def _fp8(codes_GW: torch.Tensor, rows_G: torch.Tensor, out_GW: torch.Tensor) -> None:
    """Eight codes of a word into the eight bytes of a wider one."""
    x = codes_GW.to(torch.int64) & 0xFFFFFFFF
    x = (x | (x << 16)) & 0x0000FFFF0000FFFF
    x = (x | (x << 8)) & 0x00FF00FF00FF00FF
    x = (x | (x << 4)) & 0x0F0F0F0F0F0F0F0F
    magnitude = x & 0x0707070707070707
    some = ((magnitude + 0x0707070707070707) & 0x0808080808080808) >> 3
    two_up = ((magnitude + 0x0606060606060606) & 0x0808080808080808) >> 1
    lanes = (some << 8) - some
    # Row 16 is k = 0; 0x2C + 4 m is the byte of magnitude m, and 0x30 that of m = 1.
    base = ((rows_G.to(torch.int64) - _ROW_OF_0) * 8 + 0x2C) * 0x0101010101010101
    sign = (x & 0x0808080808080808) << 4
    out_GW.copy_((magnitude << 2) + two_up + (lanes & base.unsqueeze(1)) + sign)


def _look_up(codes_GB: torch.Tensor, rows_G: torch.Tensor, look: torch.Tensor, out_GB: torch.Tensor) -> None:
    """The table of eager, in one pass."""
    out_GB.copy_(look[(rows_G.to(torch.int32) << 8).unsqueeze(1) + codes_GB.to(torch.int32)])


_ROW_OF_0 = NAN_ROW - 1 - HIGHEST


def _bf16(codes_GW: torch.Tensor, rows_G: torch.Tensor, out_GW2: torch.Tensor) -> None:
    """Eight codes of a word into two words of four values."""
    x = codes_GW.to(torch.int64)
    base = ((rows_G.to(torch.int64) - 1) * 128 - 0x40) * 0x0001000100010001
    out_GW2[..., 0].copy_(_four_bf16(x & 0xFFFF, base.unsqueeze(1)))
    out_GW2[..., 1].copy_(_four_bf16((x >> 16) & 0xFFFF, base.unsqueeze(1)))


def _four_bf16(x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    x = (x | (x << 24)) & 0x000000FF000000FF
    x = (x | (x << 12)) & 0x000F000F000F000F
    magnitude = x & 0x0007000700070007
    some = ((magnitude + 0x0007000700070007) & 0x0008000800080008) >> 3
    two_up = ((magnitude + 0x0006000600060006) & 0x0008000800080008) << 3
    lanes = (some << 16) - some
    return (magnitude << 6) + two_up + (lanes & base) + ((x & 0x0008000800080008) << 12)


@functools.lru_cache(maxsize=4)
def _compiled(kind: str) -> Callable[..., Any]:
    if kind == "look_up":
        # Matrices of a model have a few shapes: one program for all of them.
        return torch.compile(_look_up, dynamic=True)
    made: Callable[..., Any]
    made = torch.compile(_fp8, dynamic=False) if kind == "fp8" else torch.compile(_bf16, dynamic=False)
    return made


def _missing(device: str) -> str:
    import shutil
    from importlib.util import find_spec

    if device == "cuda":
        return "" if find_spec("triton") else "torch.compile on CUDA needs the package triton"
    if device != "cpu":
        return f"it has not been tried on {device}"
    return "" if any(shutil.which(name) for name in ("c++", "g++", "clang++")) else "torch.compile needs a C++ compiler"


TIER = Tier(
    name="compiled",
    summary="bit arithmetic under torch.compile; the first call takes seconds",
    missing=_missing,
    decode=decode,
    forks=False,
)
