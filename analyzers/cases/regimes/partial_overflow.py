"""Halves that cancel: every partial sum is beyond float16, and the whole is not."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.regimes._regime import Regime
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensor_values, tensors_in

__all__ = ["REGIME"]

_FACTORS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "matmul": 0, "linear": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Which of the floating arguments has the rows that are multiplied and added up; the one behind it has their partners."""
_SUMS = frozenset({"sum", "mean"})
LARGE = 40000.0
"""Two of them are beyond the largest float16, 65504, and one is not."""


def _applies(signature: Signature, contract: Operator | None) -> bool:
    name = short_name(signature.op)
    return (name in _FACTORS or name in _SUMS) and any(one.dtype == "float16" for one in tensor_values(signature))


def _arrange(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    """Positive numbers, then negative ones, along every dimension of the rows; their partners are all alike."""
    tensors = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
    place = _FACTORS.get(short_name(signature.op))
    size = LARGE if place is None else LARGE**0.5
    if place is not None:
        tensors = tensors[place : place + 2]
    if any(one.dtype != torch.float16 or 0 in one.stride() for one in tensors):
        return "its tensors are not all float16 with memory of their own"
    signs = torch.ones(tensors[0].shape)
    for dim, length in enumerate(tensors[0].shape):
        half = torch.where(torch.arange(length) < length // 2, 1.0, -1.0)
        signs *= half.reshape([-1 if one == dim else 1 for one in range(signs.dim())])
    tensors[0].copy_(signs * size)
    for partner in tensors[1:]:
        partner.fill_(size)
    return ""


REGIME = Regime(
    name="partial_overflow",
    why="sums that are kept in half precision overflow on the way to a result that fits",
    applies=_applies,
    arrange=_arrange,
    last=True,
)
