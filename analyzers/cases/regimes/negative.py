"""Negative numbers only."""

from __future__ import annotations

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime, nothing

__all__ = ["REGIME"]

REGIME = Regime(
    name="negative",
    why="a maximum that begins at zero, filling that is larger than every value, a sign that is lost",
    applies=lambda signature, contract: is_computed(signature),
    values=lambda base, generator: -0.5 - nothing(base, generator).abs(),
)
