"""How far off single functions may be, as vendors document it.

In units of float32's last place: half types are computed in float32, and float64 libraries document no more. Sources:
the tables of maximum errors in the CUDA C++ Programming Guide (mathematical functions, single precision; the same in
https://developer.nvidia.cn/blog/cuda-math-method-cn), of the HIP math API
(https://rocm.docs.amd.com/projects/HIP/en/docs-6.3.3/reference/math_api.html) and, for division and the square root,
CUDA without -prec-div and -prec-sqrt. The larger one where they differ.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from day0.reference_ops._spec import DEFAULT_TOLERANCE, Tolerance

__all__ = ["came_from", "documented", "tolerance_of"]

_DOCUMENTED: dict[str, float] = {
    "acos": 2.0,
    "acosh": 4.0,
    "asin": 2.0,
    "asinh": 3.0,
    "atan": 2.0,
    "atan2": 3.0,
    "atanh": 3.0,
    "cos": 2.0,
    "cosh": 2.0,
    "div": 2.0,
    "erf": 2.0,
    "erfc": 4.0,
    "erfinv": 4.0,
    "exp": 2.0,
    "exp2": 2.0,
    "expm1": 2.0,
    "hypot": 3.0,
    "lgamma": 6.0,
    "log": 2.0,
    "log10": 2.0,
    "log1p": 2.0,
    "log2": 2.0,
    "pow": 4.0,
    "reciprocal": 1.0,
    "rsqrt": 4.0,  # 2, or a division by a square root where there is no own function
    "sin": 2.0,
    "sinh": 3.0,
    "sqrt": 1.0,
    "tan": 4.0,
    "tanh": 2.0,
}

_EXACT = frozenset({"add", "sub", "rsub", "mul", "fmod", "remainder", "trunc", "frac"})
"""IEEE 754 defines these: half a unit, and one where a product is fused with a sum or not."""

_COMPOSED: dict[str, float] = {
    "elu": 4.0,
    "celu": 4.0,
    "selu": 4.0,
    "gelu": 8.0,
    "glu": 4.0,
    "log_sigmoid": 4.0,
    "logit": 4.0,
    "mish": 8.0,
    "sigmoid": 4.0,
    "silu": 4.0,
    "softplus": 4.0,
    "_softmax": 8.0,
    "_safe_softmax": 8.0,
    "softmax": 8.0,
    "_log_softmax": 8.0,
    "logsumexp": 8.0,
}
"""Functions made of documented ones: two for each exponential, logarithm or tangent, and two for a division."""


_FROM_ONE = frozenset({"celu", "elu", "log_sigmoid", "logit", "selu", "sigmoid", "softplus"})
_FROM_INPUT = frozenset({"gelu", "mish", "silu"})


def came_from(name: str, source: torch.Tensor) -> torch.Tensor | None:
    """Return how large the numbers are that a composed function is made of, where its result can be much smaller.

    A sigmoid is made of numbers around 1, by whichever formula, and its product with x of numbers around x: far out in the
    tail they cancel. XLA computes sigmoid(x) as (1 + tanh(x / 2)) / 2.
    """
    if name in _FROM_INPUT:
        return source.to(torch.float64).abs()
    return torch.ones(source.shape, dtype=torch.float64) if name in _FROM_ONE else None


def documented(name: str) -> bool:
    """Say whether the error of one call is documented, whatever its arguments."""
    return name in _DOCUMENTED or name in _EXACT


def tolerance_of(name: str) -> Tolerance:
    """Return the tolerance of an aten operator without a contract; `name` is without namespace and overload."""
    if name in _DOCUMENTED:
        reason = f"vendors document up to {_DOCUMENTED[name]:g} ULP for this function in float32"
        return replace(DEFAULT_TOLERANCE, ulps=_DOCUMENTED[name], reason=reason)
    if name in _COMPOSED:
        reason = f"made of functions whose documented errors add up to {_COMPOSED[name]:g} ULP of float32"
        return replace(DEFAULT_TOLERANCE, ulps=_COMPOSED[name], reason=reason)
    return DEFAULT_TOLERANCE
