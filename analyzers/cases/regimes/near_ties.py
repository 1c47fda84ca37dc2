"""Numbers that differ by one unit in the last place."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import has_floats, says_values, ties_matter
from day0.analyzers.cases.regimes._regime import Regime

__all__ = ["REGIME"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return one of three numbers of the row's own dtype, or one to three of its neighbours."""
    levels = torch.tensor([-1.0, 0.5, 1.0]).to(base.dtype)
    chosen = levels.view(_WORDS[base.element_size()])[torch.randint(0, 3, base.shape, generator=generator)]
    steps = torch.randint(0, 4, base.shape, generator=generator).to(chosen.dtype)
    return (chosen + steps).view(base.dtype)


REGIME = Regime(
    name="near_ties",
    why="comparisons in fewer bits than the values have",
    applies=lambda signature, contract: has_floats(signature) and says_values(signature) and ties_matter(signature),
    values=_values,
)
