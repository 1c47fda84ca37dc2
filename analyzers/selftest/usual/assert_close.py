"""`torch.testing.assert_close` with its defaults by dtype, against the same dtype on the CPU."""

from __future__ import annotations

import torch

__all__ = ["NAME", "agrees"]

NAME = "assert_close"


def agrees(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether the rule passes; NaN equals NaN. Dtypes of eight bits are compared as float32, for want of a default."""
    if got.dtype == expected.dtype and expected.element_size() == 1 and expected.is_floating_point():
        narrow = expected.dtype == torch.float4_e2m1fn_x2
        got, expected = (one.view(torch.uint8) if narrow else one.float() for one in (got, expected))
    try:
        torch.testing.assert_close(got, expected, equal_nan=True, check_device=False)
    except AssertionError:
        return False
    return True
