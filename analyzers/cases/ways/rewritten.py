"""A call, then one with other values in the same memory: what was kept from the first must not answer the second."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_with_storages
from day0.analyzers.cases.kinds import has_floats, is_repeatable, mutated, says_values
from day0.analyzers.cases.ways._results import kept_results
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
    return More(second=after, inputs=_turned_inputs(inputs))


def _turned_inputs(inputs: CaseInputs) -> CaseInputs:
    other, memory = copy_with_storages(inputs, torch.device("cpu"))
    for pair in memory:
        pair.moved.copy_(_turned(pair.original))
    return other


def _turned(row: torch.Tensor) -> torch.Tensor:
    """Return floats in the other order, all else as it is: numbers that were valid stay valid."""
    return row.flip(0) if row.is_floating_point() and row.element_size() > 1 else row


WAY = Way(
    name="rewritten",
    why="kernels that remember what stood at an address: packed weights, pages of a cache",
    applies=_applies,
    again=_again,
)
