"""`torch.allclose` at 1e-2 against the same dtype on the CPU, which many repositories of kernels take for all dtypes."""

from __future__ import annotations

import torch

from day0.analyzers.selftest.usual._pair import comparable, wide

__all__ = ["NAME", "agrees"]

NAME = "allclose 1e-2"


def agrees(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether the rule passes; NaN equals NaN."""
    return comparable(got, expected) and torch.allclose(wide(got), wide(expected), rtol=1e-2, atol=1e-2, equal_nan=True)
