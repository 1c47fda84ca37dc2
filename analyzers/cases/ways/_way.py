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

__all__ = ["More", "Way", "load_ways", "no_more"]


@dataclass(frozen=True, kw_only=True, slots=True)
class More:
    """What came of the calls after the first one."""

    differs: Judgement | None = None
    """Set where they had to give the same bits and did not."""
    second: tuple[torch.Tensor, ...] | None = None
    """Results of another way to the same values, on the CPU: judged by the same rule as the first."""
    varies: tuple[str, ...] = ()
    """In what right results of another way differ from those of the first: a warning where the rule passes both."""
    inputs: CaseInputs | None = None
    """The values that the second results are for, on the CPU, where they are not those of the first call."""


def no_more(operator: Any, inputs: CaseInputs, device: torch.device, first: tuple[torch.Tensor, ...]) -> More:
    """Make no further call."""
    return More()


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way of calling: a first call, which is judged as it is, and perhaps others with the same values."""

    name: str
    why: str
    """Which mistakes show under it."""
    applies: Callable[[Signature, Operator | None], bool]
    again: Callable[[Any, CaseInputs, torch.device, tuple[torch.Tensor, ...]], More] = no_more
    """Takes the operator, its arguments on the CPU, the device, and what the first call gave there."""
    device_index: int = 0
    """Where the arguments go, on devices that have so many."""


@cache
def load_ways() -> dict[str, Way]:
    """Return all ways by name."""
    from day0.analyzers.cases import ways

    return find_all(ways, "WAY", Way)
