"""The same call three times, each with arguments of its own: the same bits each time."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import is_repeatable, says_values
from day0.analyzers.cases.ways._way import More, Way
from day0.analyzers.judging.exact import differs
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.results import results
from day0.analyzers.judging.words import first_true, readable, text_at
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
        if judgement := _compare(kept, _kept(operator, output, moved), number):
            return More(differs=judgement)
    return More()


def _kept(operator: Any, output: Any, inputs: CaseInputs) -> tuple[torch.Tensor, ...]:
    return tuple(one.detach().cpu().clone() for one in results(operator, output, inputs))


def _compare(first: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...], number: int) -> Judgement | None:
    for one, two in zip(first, other, strict=True):
        if one.shape != two.shape or one.dtype != two.dtype:
            reason = f"call {number} gave {two.dtype}{list(two.shape)}, the first {one.dtype}{list(one.shape)}"
            return Judgement(passed=False, rule="repeat", reason=reason)
        wrong = differs(two, one)
        if bool(wrong.any()):
            index = first_true(wrong)[: one.dim()]
            return Judgement(
                passed=False,
                rule="repeat",
                reason=f"{int(wrong.sum())} elements of call {number} differ from the first call with the same arguments",
                worst_index=index,
                worst_got=text_at(readable(two), index),
                worst_expected=text_at(readable(one), index),
            )
    return None


WAY = Way(
    name="repeated",
    why="kernels that remember a shape, alternate, or sum in another order each time",
    applies=_applies,
    again=_again,
)
