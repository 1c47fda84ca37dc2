"""Few different numbers, zero among them: exact ties."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import has_floats, says_values, ties_matter
from day0.analyzers.cases.regimes._regime import Regime, nothing

__all__ = ["REGIME"]


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (nothing(base, generator) * 2.0).round().clamp(-2.0, 2.0) * 0.5


REGIME = Regime(
    name="ties",
    why="selections that drop, repeat or invent places where values are equal",
    applies=lambda signature, contract: has_floats(signature) and says_values(signature) and ties_matter(signature),
    values=_values,
    everywhere=True,
)
