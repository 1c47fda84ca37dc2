"""day0::mxfp4_decode by a table, without float64."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation
from day0.reference_ops.mxfp4_decode import BLOCK, E2M1_VALUES, nibbles, validate

__all__ = ["IMPLEMENTATIONS"]


def by_table(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, order: str = "low_first") -> torch.Tensor:
    """Look up sixteen values, multiply by the power of two.

    The product is exact in float32 unless it is below float32's normal range, where two factors keep it right:
    2^(s-127) itself is subnormal for s = 0, so the power is applied in two halves.
    """
    validate(codes, scales, dtype, order)
    table_16 = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.float32).to(codes.device)
    value = table_16[nibbles(codes, order).to(torch.int64)]
    exponent = scales.to(torch.float32) - 127.0
    half = torch.floor(exponent * 0.5)
    first, second = torch.exp2(half), torch.exp2(exponent - half)
    second = torch.where(scales == 255, float("nan"), second)
    grouped = value.unflatten(-1, (-1, BLOCK)) * first[..., None] * second[..., None]
    decoded: torch.Tensor = grouped.flatten(-2)
    return decoded.to(dtype)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::mxfp4_decode",
        contract=2,
        id="table_16",
        version="1.1",
        kind="decomposition",
        run=by_table,
        why="table of sixteen values and an exact power of two, in float32",
        constraints=Constraints(dtypes=frozenset({"uint8", "float16", "bfloat16", "float32"})),
    ),
)
