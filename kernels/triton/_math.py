"""Functions of float32 that several kernels share, as exact as the contracts ask.

Triton's own exponential multiplies by log2 e first: at -40 the rounding of that product is eleven units of the result.
A jitted function finds others by the globals of its module; kernels take these over into theirs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from day0.kernels.triton._triton import triton_and_language

__all__ = ["Functions", "functions"]

tl: Any = None
exp: Any = None
"""Set at the first call, as `tl` is: Triton looks both up in this module by these names."""


class Functions(NamedTuple):
    """Jitted functions of float32 blocks."""

    exp: Any
    sigmoid: Any
    tanh: Any
    quick_sigmoid: Any
    quick_tanh: Any
    """For results in half types: Triton's exponential and division, a few units of float32 off."""
    softplus: Any
    unit_rows: Any
    """Rows over the root of their mean square plus eps; columns beyond the row hold 0."""
    power_above: Any
    """E8M0 exponent k, such that 2^k is the least power of two not below x / 448, for normal x."""


@cache
def functions() -> Functions:
    """Return the functions; Triton is imported at the first call."""
    global tl, exp
    triton, tl = triton_and_language()

    @triton.jit
    def exp(x):
        # Beyond these it is 0 or infinity in float32; infinities would become NaN in the remainder.
        x = tl.where(x < -104.0, -104.0, x)
        x = tl.where(x > 89.0, 89.0, x)
        n = tl.floor(x * 1.4426950408889634 + 0.5)
        # ln 2 in two parts, the first of few bits: n times it is exact.
        rest = (x - n * 0.693359375) + n * 2.12194440e-4
        return tl.exp2(n) * tl.exp2(rest * 1.4426950408889634)

    @triton.jit
    def sigmoid(x):
        return tl.div_rn(1.0, 1.0 + exp(-x))

    @triton.jit
    def tanh(x):
        # Cephes: a polynomial where 1 - 2 / (e^2x + 1) would cancel.
        z = x * x
        p = -5.70498872745e-3 * z + 2.06390887954e-2
        p = p * z - 5.37397155531e-2
        p = p * z + 1.33314422036e-1
        p = p * z - 3.33332819422e-1
        small = p * z * x + x
        far = 1.0 - 2.0 / (exp(2.0 * tl.abs(x)) + 1.0)
        far = tl.where(x < 0.0, -far, far)
        return tl.where(tl.abs(x) < 0.625, small, far)

    @triton.jit
    def quick_sigmoid(x):
        # By the smaller exponential: a quotient of numbers beyond 2^126 would be 0.
        e = tl.exp(-tl.abs(x))
        share = 1.0 / (1.0 + e)
        return tl.where(x < 0.0, e * share, share)

    @triton.jit
    def quick_tanh(x):
        # A series where 1 - 2 / (e^2x + 1) would cancel: what it leaves out is below 2^-20 of the result.
        z = x * x
        small = x * (1.0 + z * (-0.33333334 + z * (0.13333334 - z * 0.05396825)))
        far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
        far = tl.where(x < 0.0, -far, far)
        return tl.where(tl.abs(x) < 0.25, small, far)

    @triton.jit
    def softplus(x):
        # ln(1 + e) = 2 artanh(e / (2 + e)): no logarithm near 1, which would lose the digits of a small e.
        e = exp(-tl.abs(x))
        z = tl.div_rn(e, 2.0 + e)
        s = z * z
        p = 1.0 / 17.0
        p = p * s + 1.0 / 15.0
        p = p * s + 1.0 / 13.0
        p = p * s + 1.0 / 11.0
        p = p * s + 1.0 / 9.0
        p = p * s + 1.0 / 7.0
        p = p * s + 1.0 / 5.0
        p = p * s + 1.0 / 3.0
        p = p * s + 1.0
        # Not maximum: it would turn a NaN into 0.
        return tl.where(x < 0.0, 0.0, x) + 2.0 * z * p

    @triton.jit
    def unit_rows(x, columns, eps):
        mean = tl.sum(x * x, 1) / columns
        return x * tl.div_rn(1.0, tl.sqrt_rn(mean + eps))[:, None]

    @triton.jit
    def power_above(x):
        # x = m 2^e with m in [0.5, 1), and 448 = 0.875 * 2^9.
        bits = x.to(tl.int32, bitcast=True)
        return (bits >> 23) - 126 - 9 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)

    return Functions(exp, sigmoid, tanh, quick_sigmoid, quick_tanh, softplus, unit_rows, power_above)
