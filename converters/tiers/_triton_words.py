"""Tables as words of 32 bits, and the instructions that look eight codes up in them.

Shape suffixes: R rows of a table, W words of 32 bits, S bytes of a value.
"""

from __future__ import annotations

import functools

import torch

from day0.converters.tables import E4M3, Table, fp8_table

__all__ = ["ONE_BYTE", "TWO_BYTES", "table_values", "table_words", "words_of"]

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


def _sixteen(table: Table) -> torch.Tensor:
    """Return what each of the sixteen codes becomes in every row, [R, 16]."""
    narrow = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[table.layout.bits]
    rows = len(table.pairs)
    # As the low nibble, under a high one of zero.
    return table.pairs[:, :16].contiguous().view(narrow).view(rows, 16, 2)[..., 0].contiguous()


@functools.lru_cache(maxsize=32)
def table_values(table: Table, device: torch.device) -> torch.Tensor:
    """Return what each of the sixteen codes becomes in every row, [R, 16], on a device."""
    return _sixteen(table).to(device)


@functools.lru_cache(maxsize=32)
def table_words(table: Table, device: torch.device) -> torch.Tensor:
    """Return [R, W] int32: four words of the lowest bytes of codes 0 to 15, then four of the next ones."""
    rows, size = len(table.pairs), table.layout.bits // 8
    bytes_R16S = _sixteen(table).view(torch.uint8).view(rows, 16, size)
    return bytes_R16S.permute(0, 2, 1).reshape(rows, 16 * size).clone().view(torch.int32).to(device)


def words_of(device: torch.device) -> torch.Tensor:
    """Return the table of e4m3: its sixteen bytes of every row, in order, are four words as well."""
    return table_values(fp8_table(E4M3), device)
