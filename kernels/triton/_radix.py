"""The score at the cut of a few long rows, by three histograms over its bits: every row is spread over the device.

A score becomes a whole number that rises with it; NaN, -inf and what lies beyond a length become 0, below all others.
The first histogram counts its upper 11 bits, the second the next 11 of those at the cut, the third the last 10.

Shape suffixes: R rows, T keys; L levels, C bins.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from day0.kernels.triton._triton import triton_and_language

__all__ = ["BINS", "LEVELS", "Radix", "radix"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
keys_of: Any = None
level_of: Any = None

LEVELS, BINS = 3, 2048


class Radix(NamedTuple):
    """Jitted functions."""

    count_bins: Any
    """Kernel: one histogram over rows, into table [R, L, C] of zeros; what the level before found goes into state."""
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
        BINS: tl.constexpr,
    ):
        row = tl.program_id(1).to(tl.int64)
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        key = keys_of(scores, lengths, row, place, keys, LENGTHS)
        take = key > 0
        bin_ = key >> 21
        if LEVEL > 0:
            need = topk
            prefix = 0
            if LEVEL == 2:
                prefix = tl.load(state + row * 4)
                need = tl.load(state + row * 4 + 1)
            best, left = level_of(table + (row * 3 + LEVEL - 1) * BINS, need, BINS)
            # Nothing is below a prefix of -1: then every open key is taken.
            prefix = tl.where((best < 0) | (prefix < 0), -1, prefix * BINS + best)
            # Every program of a row writes the same.
            tl.store(state + row * 4 + (LEVEL - 1) * 2, prefix)
            tl.store(state + row * 4 + (LEVEL - 1) * 2 + 1, left)
            if LEVEL == 1:
                take = take & ((key >> 21).to(tl.int32) == prefix)
                bin_ = (key >> 10) & 2047
            else:
                take = take & ((key >> 10).to(tl.int32) == prefix)
                bin_ = key & 1023
        bins = tl.arange(0, BINS)
        counts = tl.histogram(bin_.to(tl.int32), BINS, mask=take)
        tl.atomic_add(table + (row * 3 + LEVEL) * BINS + bins, counts, mask=counts > 0)

    @triton.jit
    def cut_of(table, state, row, BINS: tl.constexpr):
        prefix = tl.load(state + row * 4 + 2)
        best, _ = level_of(table + (row * 3 + 2) * BINS, tl.load(state + row * 4 + 3), BINS)
        return tl.where((prefix < 0) | (best < 0), 0, (prefix.to(tl.uint32) << 10) | best.to(tl.uint32))

    return Radix(count_bins, keys_of, cut_of)
