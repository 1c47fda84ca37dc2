"""Numbers of float32 as parts in bfloat16, 8 bits each: three are the number, and two have 16 bits of it.

Products of parts go through the matrix unit as fast as three in TF32 do. Sums come out as the next product takes its left
side, where TF32 would send them through shared memory, and parts that are kept need no more work when they are read.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from day0.kernels.triton._triton import triton_and_language

__all__ = ["Parts", "parts_of_float32"]

tl: Any = None
top: Any = None
split: Any = None
"""Set at the first call: Triton looks these up in this module by these names."""


class Parts(NamedTuple):
    """Jitted functions of blocks."""

    split: Any
    """Three parts whose sum is x; infinity becomes NaN."""
    product: Any
    """Product of the parts of two matrices, added to a block of float32."""
    keep: Any
    """Store the first parts of x, one behind the other."""
    kept: Any
    """Load parts that were kept, always three: with fewer some stand twice."""


@cache
def parts_of_float32() -> Parts:
    """Return the functions; Triton is imported at the first call."""
    global tl, top, split
    triton, tl = triton_and_language()

    @triton.jit
    def top(bits):
        return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)

    @triton.jit
    def split(x):
        # Cut off, which is exact and quicker than to round.
        bits = x.to(tl.int32, bitcast=True)
        rest = x - (bits & -65536).to(tl.float32, bitcast=True)
        rest_bits = rest.to(tl.int32, bitcast=True)
        small = rest - (rest_bits & -65536).to(tl.float32, bitcast=True)
        return top(bits), top(rest_bits), top(small.to(tl.int32, bitcast=True))

    @triton.jit
    def product(a, b, result, PARTS: tl.constexpr):
        # What is left out is below the last bit of PARTS parts. Small ones first.
        if PARTS == 3:
            result = tl.dot(a[2], b[0], result)
            result = tl.dot(a[1], b[1], result)
            result = tl.dot(a[0], b[2], result)
        result = tl.dot(a[1], b[0], result)
        result = tl.dot(a[0], b[1], result)
        return tl.dot(a[0], b[0], result)

    @triton.jit
    def keep(to, step, x, PARTS: tl.constexpr):
        large, middle, small = split(x)
        tl.store(to, large)
        tl.store(to + step, middle)
        if PARTS == 3:
            tl.store(to + 2 * step, small)

    @triton.jit
    def kept(at, step, PARTS: tl.constexpr):
        large, middle = tl.load(at), tl.load(at + step)
        small = middle
        if PARTS == 3:
            small = tl.load(at + 2 * step)
        return large, middle, small

    return Parts(split, product, keep, kept)
