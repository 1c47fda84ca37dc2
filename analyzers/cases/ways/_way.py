"""What a way of calling says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.plugins import find_all
from day0.analyzers.judging.judgement import Judgement
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["Called", "Way", "load_ways"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """What came of calling an operator in some way."""

    output: Any
    """What the first call returned; it is judged as that of a plain case."""
    differs: Judgement | None = None
    """Set where other calls had to give the same bits and did not."""
    second: tuple[torch.Tensor, ...] | None = None
    """Results of another way to the same values, on the CPU: judged by the same rule as the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way of calling."""

    name: str
    why: str
    """Which mistakes show under it."""
    applies: Callable[[Signature, Operator | None], bool]
    run: Callable[[Any, CaseInputs, CaseInputs], Called]
    """Takes the operator, the arguments on the device, and the same on the CPU for those calls that need them anew."""
    device_index: int = 0
    """Where the arguments go, on devices that have so many."""


@cache
def load_ways() -> dict[str, Way]:
    """Return all ways by name."""
    from day0.analyzers.cases import ways

    return find_all(ways, "WAY", Way)
