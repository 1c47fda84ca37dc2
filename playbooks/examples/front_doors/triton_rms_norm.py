"""day0::rms_norm in Triton.

Triton is imported and the kernel is compiled at the first call. Where Triton is not installed the registry is told so.
Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, util
from typing import Any

import torch

from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.reference_ops.rms_norm import validate

__all__ = ["IMPLEMENTATIONS"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call."""

LARGEST_ROW = 32768
"""One program holds a whole row; beyond this it would spill."""


def has_triton(call: Call) -> Accepted | Rejected:
    """Triton is installed."""
    return Accepted() if util.find_spec("triton") else Rejected("triton is not installed")


@cache
def _kernel() -> tuple[Any, Any]:
    """Return Triton and the kernel: one program for each row."""
    global tl
    triton = import_module("triton")
    tl = import_module("triton.language")

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is imported by name
    def row(x, weight, out, features, eps, ROUND: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - Triton's own language
        start = tl.program_id(0).to(tl.int64) * features
        place = tl.arange(0, BLOCK)
        inside = place < features
        value = tl.load(x + start + place, mask=inside, other=0.0)
        wide = value.to(tl.float32)
        normed = wide * (1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / features + eps))
        if ROUND:
            normed = normed.to(value.dtype).to(tl.float32)
        scaled = normed * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + start + place, scaled.to(value.dtype), mask=inside)

    return triton, row


def rms_norm(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x."""
    validate(x_XD, weight_D, eps, round_first)
    x_XD, weight_D = x_XD.contiguous(), weight_D.contiguous()
    out_XD = torch.empty_like(x_XD)
    features = x_XD.shape[-1]
    if rows := x_XD.numel() // features:
        triton, row = _kernel()
        block = triton.next_power_of_2(features)
        row[(rows,)](x_XD, weight_D, out_XD, features, eps, ROUND=round_first, BLOCK=block)
    return out_XD


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::rms_norm",
        contract=1,
        id="triton_row",
        version="1.0",
        kind="kernel",
        run=rms_norm,
        why="one program for each row, which is read once",
        devices=("cuda",),
        constraints=Constraints(
            dtypes=frozenset({"float32", "bfloat16", "float16"}),
            arguments={"x": TensorLimit(sizes={-1: Limit(at_most=LARGEST_ROW)})},
        ),
        predicate=has_triton,
    ),
)
