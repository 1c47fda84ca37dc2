"""Two results that a usual rule compares."""

from __future__ import annotations

import torch

__all__ = ["comparable", "wide"]


def comparable(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether two results have one shape and one dtype: no usual rule goes on where they do not."""
    return got.shape == expected.shape and got.dtype == expected.dtype


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers that every comparison works on: float64, complex ones as pairs, packed codes as bytes."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype == torch.float4_e2m1fn_x2:
        tensor = tensor.view(torch.uint8)
    return tensor.to(torch.float64)
