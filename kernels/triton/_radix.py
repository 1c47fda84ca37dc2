"""The score at the cut of a few long rows, by three histograms over its bits: every row is spread over the device.

A score becomes a whole number that rises with it; NaN, -inf and what lies beyond a length become 0, below all others.
The first histogram counts its upper 9 bits, the exponent; the second the next 12 of those at the cut, the third the last
11. Nearly all keys are counted by the first, into few bins, so each program counts its own before it adds them up; few
are left for the others, and spread, so these count in the table itself.

Shape suffixes: R rows, T keys; C bins of all three tables.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from day0.kernels.triton._triton import triton_and_language

__all__ = ["LEVELS", "TABLE", "Radix", "radix"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
keys_of: Any = None
level_of: Any = None

LEVELS, TABLE = 3, 512 + 4096 + 2048
"""Histograms, and the bins of all for one row."""


class Radix(NamedTuple):
    """Jitted functions."""

    count_bins: Any
    """Kernel: one histogram over rows, into table [R, C] of zeros; what the level before found goes into state."""
    keys_of: Any
    """Whole numbers of a block of a row."""
    cut_of: Any
    """The number at the cut, from all three; 0 where a row has no more open keys than are asked for."""


@cache
def radix() -> Radix:
    """Return the functions; Triton is imported at the first call."""
    global tl, keys_of, level_of
    triton, tl = triton_and_language()

    @triton.jit
    def keys_of(scores, lengths, row, place, keys, LENGTHS: tl.constexpr):
        end = keys
        if LENGTHS:
            end = tl.minimum(tl.load(lengths + row), keys)
        score = tl.load(scores + row * keys + place, mask=place < end, other=float("-inf")).to(tl.float32)
        # -0 as 0; a comparison that NaN does not pass either.
        bits = (score + 0.0).to(tl.uint32, bitcast=True)
        rising = tl.where((bits >> 31) != 0, ~bits, bits | 0x80000000)
        return tl.where((score > float("-inf")) & (place < end), rising, 0).to(tl.uint32)

    @triton.jit
    def level_of(table, need, BINS: tl.constexpr):
        # The bin that holds the last of the needed ones, and how many of its own are needed; -1 where all are.
        bins = tl.arange(0, BINS)
        counts = tl.load(table + bins)
        from_here = tl.cumsum(counts, 0, reverse=True)
        above = from_here - counts
        hit = (above < need) & (from_here >= need)
        best = tl.max(tl.where(hit, bins, -1), 0)
        return best, need - tl.max(tl.where(hit, above, 0), 0)

    @triton.jit
    def count_bins(
        scores,
        lengths,
        table,
        state,
        keys,
        topk,
        LENGTHS: tl.constexpr,
        LEVEL: tl.constexpr,
        BLOCK: tl.constexpr,
        TABLE: tl.constexpr,
    ):
        row = tl.program_id(1).to(tl.int64)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        key = keys_of(scores, lengths, row, place, keys, LENGTHS)
        table += row * TABLE
        state += row * 4
        if LEVEL == 0:
            bins = tl.arange(0, 512)
            counts = tl.histogram((key >> 23).to(tl.int32), 512, mask=key > 0)
            tl.atomic_add(table + bins, counts, mask=counts > 0)
        else:
            if LEVEL == 1:
                best, left = level_of(table, topk, 512)
                prefix = best
                take = (key >> 23).to(tl.int32) == prefix
                bin_ = 512 + ((key >> 11) & 4095)
            else:
                prefix = tl.load(state)
                best, left = level_of(table + 512, tl.load(state + 1), 4096)
                # Nothing is below a prefix of -1: then every open key is taken.
                prefix = tl.where((best < 0) | (prefix < 0), -1, prefix * 4096 + best)
                take = (key >> 11).to(tl.int32) == prefix
                bin_ = 512 + 4096 + (key & 2047)
            # Every program of a row writes the same.
            tl.store(state + (LEVEL - 1) * 2, prefix)
            tl.store(state + (LEVEL - 1) * 2 + 1, left)
            tl.atomic_add(table + bin_.to(tl.int32), 1, mask=take & (key > 0))

    @triton.jit
    def cut_of(table, state, row, TABLE: tl.constexpr):
        prefix = tl.load(state + row * 4 + 2)
        best, _ = level_of(table + row * TABLE + 512 + 4096, tl.load(state + row * 4 + 3), 2048)
        return tl.where((prefix < 0) | (best < 0), 0, (prefix.to(tl.uint32) << 11) | best.to(tl.uint32))

    return Radix(count_bins, keys_of, cut_of)
