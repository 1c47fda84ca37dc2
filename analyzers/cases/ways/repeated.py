"""The same call three times, each with arguments of its own: the same bits each time."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import is_repeatable, says_values
from day0.analyzers.cases.ways._results import compare_bits, kept_results
from day0.analyzers.cases.ways._way import More, Way
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["WAY"]

CALLS = 3
"""Enough to see a kernel that alternates, and one that is right until it has a plan for the shape."""


def _applies(signature: Signature, contract: Operator | None) -> bool:
    return says_values(signature) and is_repeatable(signature)


def _again(operator: Any, inputs: CaseInputs, device: torch.device, first: tuple[torch.Tensor, ...]) -> More:
    kept = tuple(one.detach().cpu() for one in first)
    for number in range(2, CALLS + 1):
        moved = copy_to(inputs, device)
        with torch.no_grad():
            output = operator(*moved.args, **moved.kwargs)
        other = kept_results(operator, output, moved)
        if judgement := compare_bits(kept, other, f"call {number}", "the first call with the same arguments"):
            return More(differs=judgement)
    return More()


WAY = Way(
    name="repeated",
    why="kernels that remember a shape, alternate, or sum in another order each time",
    applies=_applies,
    again=_again,
)
