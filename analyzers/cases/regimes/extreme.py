"""Magnitudes near the end of the range: sums of squares leave a half type, and not float32."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import is_aten, is_computed
from day0.analyzers.cases.regimes._regime import Regime, nothing
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["REGIME"]

_SENSITIVE = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "pow",
        "exp",
        "exp2",
        "expm1",
        "sinh",
        "cosh",
        "prod",
        "cumprod",
        "var",
        "std",
        "erfinv",
        "lgamma",
        "digamma",
    ]
)
"""What they do to large numbers is the device's own affair: a reduction of angles, an overflow, a cancellation."""


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    largest = 300.0 if torch.finfo(base.dtype).max < 1e5 else 1e15
    return nothing(base, generator) * largest


def _applies(signature: Signature, contract: Operator | None) -> bool:
    return is_computed(signature) and is_aten(signature) and short_name(signature.op) not in _SENSITIVE


REGIME = Regime(
    name="extreme",
    why="sums that are kept in the narrow type and overflow",
    applies=_applies,
    values=_values,
)
