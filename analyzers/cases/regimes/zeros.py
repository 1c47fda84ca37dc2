"""Zero everywhere."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime

__all__ = ["REGIME"]

REGIME = Regime(
    name="zeros",
    why="divisions without an epsilon, scales of a block that holds nothing",
    applies=lambda signature, contract: is_computed(signature),
    values=lambda base, generator: torch.zeros(base.shape),
)
