"""Numbers below the smallest normal one: a copy keeps them."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import has_floats, says_values
from day0.analyzers.cases.regimes._regime import Regime
from day0.analyzers.judging.kinds import is_move

__all__ = ["REGIME"]


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    info = torch.finfo(base.dtype)
    steps = torch.randint(-7, 8, base.shape, generator=generator)
    return (steps.to(torch.float64) * info.smallest_normal * info.eps).to(base.dtype)


REGIME = Regime(
    name="subnormal",
    why="copies that go through another type or flush to zero; arithmetic may flush, so it is not asked",
    applies=lambda signature, contract: has_floats(signature) and says_values(signature) and is_move(signature.op),
    values=_values,
)
