"""Some NaN and infinities among ordinary numbers."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import has_floats, is_aten, says_values
from day0.analyzers.cases.regimes._regime import Regime, nothing
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["REGIME"]

_UNSAID = frozenset(["histc", "bincount", "_to_copy", "erfinv", "searchsorted"])
"""What they make of NaN is not said, or is an error on some devices and not on others."""


def _values(base: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    values = nothing(base, generator)
    if torch.finfo(base.dtype).max < 500:
        return values
    places = torch.randperm(base.numel(), generator=generator)[: max(1, min(9, base.numel() // 8))]
    strange = torch.tensor([float("nan"), float("inf"), float("-inf")])
    if base.numel():
        values[places] = strange[torch.arange(len(places)) % 3]
    return values


def _applies(signature: Signature, contract: Operator | None) -> bool:
    return (
        is_aten(signature)
        and has_floats(signature)
        and says_values(signature)
        and short_name(signature.op) not in _UNSAID
    )


REGIME = Regime(
    name="non_finite",
    why="NaN that is lost or spreads, a minimum that overlooks it, infinities that become NaN",
    applies=_applies,
    values=_values,
)
