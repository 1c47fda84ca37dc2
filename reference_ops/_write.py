"""Write values into a tensor that may be expanded: several places then share one value."""

from __future__ import annotations

import torch

__all__ = ["write"]


def write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into target, whose expanded dimensions (stride 0) take the first value of each."""
    for dim, (size, step) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if step == 0 and size > 1:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target.copy_(values)
