"""aten::histc for integers, where a device has the histogram of floating-point values only."""

from __future__ import annotations

import torch

from day0.implementation import Constraints, Implementation

__all__ = ["IMPLEMENTATIONS"]


def histc(
    self: torch.Tensor,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
) -> torch.Tensor:
    """Count by comparing with every bin: exact for integers, no host sync when the range is given.

    A value v falls into bin floor((v - min) * bins / (max - min)), computed in integers; `max` into the last.
    """
    values_N = self.reshape(-1).to(torch.int64)
    low, high = int(min), int(max)
    if low != min or high != max:
        raise NotImplementedError("histc of integers: min and max must be whole numbers")
    if low == high and values_N.numel():
        low, high = int(values_N.min()), int(values_N.max())
    if low == high:
        low, high = low - 1, high + 1
    bin_N = torch.div((values_N - low) * bins, high - low, rounding_mode="floor")
    bin_N = torch.where(values_N == high, bins - 1, bin_N)
    inside_N = (values_N >= low) & (values_N <= high)
    hit_NB = (bin_N[:, None] == torch.arange(bins, device=self.device)) & inside_N[:, None]
    return hit_NB.sum(dim=0).to(self.dtype)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::histc",
        contract=1,
        id="integer_bins",
        version="1.0",
        kind="decomposition",
        run=histc,
        why="integer histogram by comparison with every bin, exact",
        constraints=Constraints(first_dtype=frozenset({"uint8", "int8", "int16", "int32", "int64"})),
    ),
)
