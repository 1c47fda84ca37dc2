"""Tables from four-bit codes to wider floats, made with whole numbers, so that nothing rounds by accident.

A value is `halves * 2^(exponent - 1)`: the eight magnitudes of E2M1 are 0, 1, 2, 3, 4, 6, 8 and 12 halves.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

__all__ = ["BF16", "E4M3", "E4M3FNUZ", "FP16", "FP32", "HALVES", "FloatLayout", "Table", "fp8_table", "wide_table"]

HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
LOWEST, HIGHEST = -16, 9
"""Exponents k of an FP8 table: below, everything is zero; above, every code but zero overflows."""
NAN_ROW = HIGHEST - LOWEST + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatLayout:
    """A binary float: field widths, bias, and what is special."""

    name: str
    dtype: str
    bits: int
    mantissa: int
    bias: int
    largest: int
    """Bit pattern of the largest finite value."""
    nan: int
    signed_zero: bool = True

    @property
    def lowest_normal(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias


E4M3 = FloatLayout(name="e4m3fn", dtype="F8_E4M3", bits=8, mantissa=3, bias=7, largest=0x7E, nan=0x7F)
E4M3FNUZ = FloatLayout(
    name="e4m3fnuz", dtype="F8_E4M3FNUZ", bits=8, mantissa=3, bias=8, largest=0x7F, nan=0x80, signed_zero=False
)
BF16 = FloatLayout(name="bf16", dtype="BF16", bits=16, mantissa=7, bias=127, largest=0x7F7F, nan=0x7FC0)
FP16 = FloatLayout(name="fp16", dtype="F16", bits=16, mantissa=10, bias=15, largest=0x7BFF, nan=0x7E00)
FP32 = FloatLayout(name="fp32", dtype="F32", bits=32, mantissa=23, bias=127, largest=0x7F7FFFFF, nan=0x7FC00000)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What every code becomes, in every row; a row is an exponent (FP8) or a scale byte (wider floats)."""

    layout: FloatLayout
    pairs: torch.Tensor
    """[rows, 256]: both values of a packed byte, low nibble first, as one integer of twice the width."""
    exact: torch.Tensor
    """bool [rows, 16]."""
    subnormal: torch.Tensor
    """bool [rows, 16]: a value other than zero that became a subnormal."""
    offset: int
    """Row of exponent 0."""


def encode(layout: FloatLayout, halves: int, exponent: int, *, flush: bool) -> tuple[int, bool, bool]:
    """Return the bits of `halves * 2^(exponent - 1)` rounded to nearest even, whether exact, whether subnormal.

    Beyond the largest value it saturates. With `flush`, what would be subnormal becomes zero.
    """
    if halves == 0:
        return 0, True, False
    power = exponent - 1
    top = power + halves.bit_length() - 1
    unit = max(top, layout.lowest_normal) - layout.mantissa
    shift = power - unit
    if shift >= 0:
        whole, exact = halves << shift, True
    else:
        whole, rest = divmod(halves, 1 << -shift)
        twice, unit_value = 2 * rest, 1 << -shift
        whole += int(twice > unit_value or (twice == unit_value and whole % 2 == 1))
        exact = rest == 0
    # A carry into the next exponent lands in the right bits by itself.
    field = unit + layout.mantissa + layout.bias
    bits = (
        whole
        if field == 1 and whole < (1 << layout.mantissa)
        else (field << layout.mantissa) + whole - (1 << layout.mantissa)
    )
    subnormal = 0 < bits < (1 << layout.mantissa)
    if bits > layout.largest:
        return layout.largest, False, False
    if subnormal and flush:
        return 0, False, False
    return bits, exact, subnormal


@functools.cache
def fp8_table(layout: FloatLayout, *, flush: bool = False) -> Table:
    """Return bytes of code * 2^k for k from LOWEST to HIGHEST; the last row is NaN."""
    rows = [_row(layout, k, flush=flush) for k in range(LOWEST, HIGHEST + 1)]
    return _table(layout, [*rows, _nan_row(layout)], -LOWEST)


@functools.cache
def wide_table(layout: FloatLayout, *, flush: bool = False) -> Table:
    """Return bits of code * 2^(byte - 127) for every scale byte; byte 255 is NaN."""
    rows = [_row(layout, byte - 127, flush=flush) for byte in range(255)]
    return _table(layout, [*rows, _nan_row(layout)], 127)


_Row = list[tuple[int, bool, bool]]


def _row(layout: FloatLayout, exponent: int, *, flush: bool) -> _Row:
    positive = [encode(layout, halves, exponent, flush=flush) for halves in HALVES]
    sign = 1 << (layout.bits - 1)
    negative = [((bits | sign) if bits or layout.signed_zero else 0, exact, low) for bits, exact, low in positive]
    return positive + negative


def _nan_row(layout: FloatLayout) -> _Row:
    return [(layout.nan, True, False)] * 16


def _table(layout: FloatLayout, rows: list[_Row], offset: int) -> Table:
    codes = torch.arange(256)
    bits = torch.tensor([[value for value, _, _ in row] for row in rows], dtype=torch.int64)
    wide = {8: torch.int16, 16: torch.int32, 32: torch.int64}[layout.bits]
    narrow = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[layout.bits]
    both = torch.stack((bits[:, codes & 15], bits[:, codes >> 4]), dim=-1)
    # Through the narrow dtype: a plain conversion of what has the top bit set would be out of range.
    pairs = _wrap(both, layout.bits).to(narrow).contiguous().view(wide).reshape(len(rows), 256)
    exact = torch.tensor([[one for _, one, _ in row] for row in rows])
    subnormal = torch.tensor([[one for _, _, one in row] for row in rows])
    return Table(layout=layout, pairs=pairs, exact=exact, subnormal=subnormal, offset=offset)


def _wrap(bits: torch.Tensor, width: int) -> torch.Tensor:
    if width == 8:
        return bits
    half = 1 << (width - 1)
    return (bits + half) % (2 * half) - half
