"""aten::rsqrt where a device has a square root but no reciprocal one."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation

__all__ = ["IMPLEMENTATIONS"]


def rsqrt(self: torch.Tensor) -> torch.Tensor:
    """Return 1 / sqrt(x), computed in float32 for half types so that it is rounded once.

    As in C, rsqrt(-0) is -infinity: sqrt keeps the sign of zero.
    """
    wide = self.to(torch.float32) if self.dtype in (torch.float16, torch.bfloat16) else self
    return (1.0 / wide.sqrt()).to(self.dtype)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::rsqrt",
        contract=1,
        id="sqrt_reciprocal",
        version="1.0",
        kind="decomposition",
        run=rsqrt,
        why="1 / sqrt(x): two element-wise operators that every device has",
        constraints=Constraints(dtypes=frozenset({"float16", "bfloat16", "float32", "float64"})),
    ),
)
