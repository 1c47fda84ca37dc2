"""day0::rms_norm in TileLang.

TileLang is imported and the kernel is compiled at the first call, once for each width and dtype; it needs nvcc.
Shape suffixes: X any leading dimensions, R rows, D features.
"""

# No `from __future__ import annotations`: TileLang reads the annotations of a kernel as values.

from functools import cache
from importlib import import_module, util
from typing import Any

import torch

from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.reference_ops.rms_norm import validate

__all__ = ["IMPLEMENTATIONS"]

T: Any = None
"""`tilelang.language`, which TileLang looks up in this module by this name; set at the first call."""

THREADS = 128


def has_tilelang(call: Call) -> Accepted | Rejected:
    """TileLang is installed."""
    return Accepted() if util.find_spec("tilelang") else Rejected("TileLang is not installed")


def program(features: int, dtype: str, weight_dtype: str, eps: float, round_first: bool) -> Any:
    """Return the kernel as TileLang's program: one block for each row, the row in registers."""
    global T
    T = import_module("tilelang.language")
    rows = T.dynamic("rows")

    @T.prim_func  # type: ignore[untyped-decorator]  # TileLang is imported by name
    def rms_norm_rows(
        x: T.Tensor((rows, features), dtype),  # type: ignore[valid-type]  # a value, not a type
        weight: T.Tensor((features,), weight_dtype),  # type: ignore[valid-type]  # a value, not a type
        out: T.Tensor((rows, features), dtype),  # type: ignore[valid-type]  # a value, not a type
    ) -> None:
        with T.Kernel(rows, threads=THREADS) as row:
            wide = T.alloc_fragment((1, features), "float32")
            squares = T.alloc_fragment((1, features), "float32")
            total = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, features):
                wide[i, j] = T.cast(x[row, j], "float32")
                squares[i, j] = wide[i, j] * wide[i, j]
            T.reduce_sum(squares, total, dim=1)
            for i, j in T.Parallel(1, features):
                wide[i, j] = wide[i, j] * (1.0 / T.sqrt(total[i] / features + eps))
                if round_first:
                    wide[i, j] = T.cast(T.cast(wide[i, j], dtype), "float32")
                out[row, j] = T.cast(wide[i, j] * T.cast(weight[j], "float32"), dtype)

    return rms_norm_rows


@cache
def _kernel(features: int, dtype: str, weight_dtype: str, eps: float, round_first: bool) -> Any:
    tilelang = import_module("tilelang")
    return tilelang.compile(program(features, dtype, weight_dtype, eps, round_first), target="cuda")


def rms_norm(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x."""
    validate(x_XD, weight_D, eps, round_first)
    features = x_XD.shape[-1]
    x_RD = x_XD.contiguous().view(-1, features)
    out_RD = torch.empty_like(x_RD)
    if x_RD.shape[0]:
        names = (str(one.dtype).removeprefix("torch.") for one in (x_XD, weight_D))
        _kernel(features, *names, eps, round_first)(x_RD, weight_D.contiguous(), out_RD)
    return out_RD.view(x_XD.shape)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::rms_norm",
        contract=1,
        id="tilelang",
        version="1.0",
        kind="kernel",
        run=rms_norm,
        why="one block for each row, which stays in registers",
        devices=("cuda",),
        constraints=Constraints(
            dtypes=frozenset({"float32", "bfloat16", "float16"}),
            arguments={"x": TensorLimit(sizes={-1: Limit(at_most=16384, multiple_of=THREADS)})},
        ),
        predicate=has_tilelang,
    ),
)
