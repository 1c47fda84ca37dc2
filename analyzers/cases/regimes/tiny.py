"""Numbers of a ten-thousandth: what is added to them, such as an epsilon, decides the result."""

from __future__ import annotations

from day0.analyzers.cases.kinds import is_computed
from day0.analyzers.cases.regimes._regime import Regime, nothing

__all__ = ["REGIME"]

REGIME = Regime(
    name="tiny",
    why="another epsilon, or one at another place; scales that are rounded to zero",
    applies=lambda signature, contract: is_computed(signature),
    values=lambda base, generator: nothing(base, generator) * 1e-4,
)
