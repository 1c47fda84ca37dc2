"""What a value regime says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.plugins import find_all
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["Regime", "load_regimes", "nothing"]


def nothing(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw standard normal numbers in float32."""
    return torch.randn(base.shape, generator=generator, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """One way of choosing values."""

    name: str
    why: str
    """Which mistakes show under it and under no other."""
    applies: Callable[[Signature, Operator | None], bool]
    """Says whether the regime tells something about the operator that others do not."""
    values: Callable[[torch.Tensor, torch.Generator], torch.Tensor] = nothing
    """Values for a floating row [elements], which is all the memory behind an argument; cast to its dtype after."""
    arrange: Callable[[Signature, tuple[Any, ...], dict[str, Any], torch.Generator], str] | None = None
    """Changes single values in place once all arguments are filled. Returns why that is not possible, else nothing."""
    last: bool = False
    """True where `arrange` comes after the operator's own `fill` and after the integers; else it comes before."""
    everywhere: bool = False
    """True for the regimes that every traced signature gets; others go to one signature of each kind."""
    thorough: bool = False
    """True for those that only `--thorough` plans."""


@cache
def load_regimes() -> dict[str, Regime]:
    """Return all regimes by name."""
    from day0.analyzers.cases import regimes

    return find_all(regimes, "REGIME", Regime)
