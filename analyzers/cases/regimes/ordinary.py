"""Numbers as models have them: standard normal."""

from __future__ import annotations

from day0.analyzers.cases.regimes._regime import Regime

__all__ = ["REGIME"]

REGIME = Regime(
    name="ordinary",
    why="formulas, slices, strides and indices that are wrong for most values",
    applies=lambda signature, contract: True,
    everywhere=True,
)
