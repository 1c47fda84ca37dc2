"""Refuse arguments that break a contract, before any arithmetic."""

from __future__ import annotations

import torch

from day0.errors import Day0Error

__all__ = ["Arguments"]


class Arguments:
    """Checks for the arguments of one operator; sizes that are named once must agree later."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.sizes: dict[str, int] = {}

    def shape(self, name: str, tensor: torch.Tensor, letters: str) -> None:
        """Check a shape given as letters, one for each dimension; a letter means one size in all arguments."""
        if tensor.dim() != len(letters):
            self.refuse(name, f"{len(letters)} dimensions [{', '.join(letters)}]", f"{tensor.dim()}")
        for letter, size in zip(letters, tensor.shape, strict=True):
            known = self.sizes.setdefault(letter, int(size))
            if known != size:
                self.refuse(name, f"size {known} in dimension {letter}", f"shape {list(tensor.shape)}")

    def dtype(self, name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
        """Check a dtype."""
        if tensor.dtype not in allowed:
            self.refuse(name, " or ".join(str(dtype) for dtype in allowed), str(tensor.dtype))

    def floating(self, name: str, tensor: torch.Tensor) -> None:
        """Check that a tensor holds floating-point values."""
        if not tensor.is_floating_point():
            self.refuse(name, "a floating dtype", str(tensor.dtype))
        if tensor.dtype.itemsize < 2:
            self.refuse(name, "a floating dtype of 16 bits or more", str(tensor.dtype))

    def true(self, name: str, holds: bool, expected: str, got: object) -> None:
        """Check anything else."""
        if not holds:
            self.refuse(name, expected, str(got))

    def refuse(self, name: str, expected: str, got: str) -> None:
        """Stop with the operator, the argument, what was expected and what came."""
        raise Day0Error(
            f"{self.operator}: {name}",
            f"expected {expected}, got {got}",
            hint=f"see the contract with `day0 ops show {self.operator}`",
        )
