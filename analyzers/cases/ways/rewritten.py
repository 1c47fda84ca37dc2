"""A call, then one with other values in the same memory: what was kept from the first must not answer the second."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_with_storages
from day0.analyzers.cases.kinds import has_floats, is_repeatable, mutated, says_values
from day0.analyzers.cases.ways._results import compare_bits, kept_results
from day0.analyzers.cases.ways._way import More, Way
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["WAY"]


def _applies(signature: Signature, contract: Operator | None) -> bool:
    return has_floats(signature) and says_values(signature) and is_repeatable(signature) and not mutated(signature)


def _again(operator: Any, inputs: CaseInputs, device: torch.device, first: tuple[torch.Tensor, ...]) -> More:
    moved, memory = copy_with_storages(inputs, device)
    with torch.no_grad():
        operator(*moved.args, **moved.kwargs)
        for pair in memory:
            pair.moved.copy_(_turned(pair.original))
        after = kept_results(operator, operator(*moved.args, **moved.kwargs), moved)
        other, again = copy_with_storages(inputs, device)
        for pair in again:
            pair.moved.copy_(_turned(pair.original))
        fresh = kept_results(operator, operator(*other.args, **other.kwargs), other)
    return More(differs=compare_bits(fresh, after, "the call on memory that was written anew", "one on fresh memory"))


def _turned(row: torch.Tensor) -> torch.Tensor:
    """Return floats in the other order, all else as it is: numbers that were valid stay valid."""
    return row.flip(0) if row.is_floating_point() and row.element_size() > 1 else row


WAY = Way(
    name="rewritten",
    why="kernels that remember what stood at an address: packed weights, pages of a cache",
    applies=_applies,
    again=_again,
)
