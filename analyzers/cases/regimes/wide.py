"""Numbers over six decades: small ones stand beside large ones."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime, nothing

__all__ = ["REGIME"]


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = nothing(base, generator)
    return values * 10.0 ** (torch.rand(base.shape, generator=generator) * 6.0 - 3.0)


REGIME = Regime(
    name="wide",
    why="sums in fewer bits, scales that are too coarse, ranges of a table that are too short",
    applies=lambda signature, contract: is_computed(signature),
    values=_values,
    everywhere=True,
)
