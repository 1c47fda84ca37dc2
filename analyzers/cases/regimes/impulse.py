"""Zero but for one value in each row: shows where a value goes."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime

__all__ = ["REGIME"]


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = torch.zeros(base.shape)
    if base.numel():
        places = torch.randperm(base.numel(), generator=generator)[: max(1, base.numel() // 13)]
        values[places] = 1.0 + torch.arange(len(places)) % 7
    return values


REGIME = Regime(
    name="impulse",
    why="indices that are one off, rows that are swapped: the error is as large as the value",
    applies=lambda signature, contract: is_computed(signature),
    values=_values,
    thorough=True,
)
