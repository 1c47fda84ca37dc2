"""Some NaN and infinities among ordinary numbers."""

from __future__ import annotations

import torch

from day0.analyzers.cases.kinds import has_floats, is_aten, says_values, ties_matter
from day0.analyzers.cases.regimes._regime import Regime, nothing
from day0.analyzers.judging.kinds import is_move, short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["REGIME"]

_PLAIN = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "neg",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "reciprocal",
        "square",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "mv",
        "dot",
        "sum",
        "mean",
        "cumsum",
        "prod",
        "logsumexp",
        "_softmax",
        "_log_softmax",
        "_safe_softmax",
        "softmax",
        "where",
        "isnan",
        "isinf",
        "isfinite",
    ]
)
"""Operators whose formula says what becomes of infinity. Others are composed, and `inf - inf` comes and goes with how."""

_OPEN = frozenset({"_to_copy", "searchsorted"})
"""Moves and comparisons of which it is not said: a float that is no whole number, a row that is not sorted."""


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
    name = short_name(signature.op)
    said = name in _PLAIN or is_move(signature.op) or ties_matter(signature)
    return is_aten(signature) and has_floats(signature) and says_values(signature) and said and name not in _OPEN


REGIME = Regime(
    name="non_finite",
    why="NaN that is lost or spreads, a minimum that overlooks it, infinities that become NaN",
    applies=_applies,
    values=_values,
)
