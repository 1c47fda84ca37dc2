"""The formulas of `day0::gated_activation` for kernels: in float32, one jitted function with the kind as a constant.

A kind is a number there: its place among `KINDS`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from day0.kernels.triton._math import functions
from day0.kernels.triton._triton import triton_and_language
from day0.reference_ops.gated_activation import KINDS

__all__ = ["gate_function", "kind_number"]

tl: Any = None
sigmoid: Any = None
tanh: Any = None
quick_sigmoid: Any = None
quick_tanh: Any = None
"""Set at the first call, as `tl` is."""


def kind_number(kind: str) -> int:
    """Return the number by which the function knows a kind."""
    return list(KINDS).index(kind)


@cache
def gate_function() -> Any:
    """Return `gated(gate, up, limit, beta, linear, KIND, LINEAR, HALF)`.

    LINEAR says that the up half has no bound, HALF that the result is rounded to 16 bits.
    """
    global tl, sigmoid, tanh, quick_sigmoid, quick_tanh
    triton, tl = triton_and_language()
    sigmoid, tanh = functions().sigmoid, functions().tanh
    quick_sigmoid, quick_tanh = functions().quick_sigmoid, functions().quick_tanh

    @triton.jit
    def gated(gate, up, limit, beta, linear, KIND: tl.constexpr, LINEAR: tl.constexpr, HALF: tl.constexpr):
        # By comparisons, which keep NaN; 1 and 2 are the clamped kinds.
        if KIND == 1 or KIND == 2:
            gate = tl.where(gate > limit, limit, gate)
            up = tl.where(up > limit, limit, up)
            up = tl.where(up < -limit, -limit, up)
        inner = 1.702 * gate if KIND == 2 else gate
        share = quick_sigmoid(inner) if HALF else sigmoid(inner)
        if KIND == 3:
            if not LINEAR:
                up = linear * (quick_tanh(up / linear) if HALF else tanh(up / linear))
            bounded = quick_tanh(gate / beta) if HALF else tanh(gate / beta)
            result = beta * bounded * share * up
        elif KIND == 2:
            result = gate * share * (up + 1.0)
        else:
            result = gate * share * up
        return result

    return gated
