"""The call, then one with its rows repeated until there are many: kernels choose the order of sums by their number."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import is_repeatable, mutated, says_values
from day0.analyzers.cases.ways._results import like, parts_of
from day0.analyzers.cases.ways._way import More, Way
from day0.analyzers.judging.kinds import short_name
from day0.analyzers.judging.same_results import same_batch
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["WAY"]

ROWS = 257
"""One past 256: block sizes that kernels change at are powers of two, and few are larger."""
MOST = 1 << 18
"""Elements of the longer argument."""
_ROWS_OF = {
    "mm": 0,
    "addmm": 1,
    "linear": 0,
    "matmul": 0,
    "native_layer_norm": 0,
    "day0::rms_norm": 0,
    "day0::gated_activation": 0,
    "day0::moe_router": 0,
}
"""By operator the argument whose rows, along the first dimension, have one row of every result each."""


def _applies(signature: Signature, contract: Operator | None) -> bool:
    place = _ROWS_OF.get(short_name(signature.op))
    rows = signature.args[place] if place is not None and place < len(signature.args) else None
    if not isinstance(rows, TensorValue) or len(rows.shape) < 2 or not 0 < rows.shape[0] < ROWS:
        return False
    if short_name(signature.op) == "matmul" and not _has_one_matrix(signature):
        return False
    if short_name(signature.op) == "addmm" and not _has_one_row(signature):
        return False
    size = ROWS
    for one in rows.shape[1:]:
        size *= one
    return size <= MOST and says_values(signature) and is_repeatable(signature) and not mutated(signature)


def _has_one_row(signature: Signature) -> bool:
    """Say whether what is added to a product is the same for every row."""
    added = signature.args[0]
    return isinstance(added, TensorValue) and (len(added.shape) < 2 or added.shape[0] == 1)


def _has_one_matrix(signature: Signature) -> bool:
    other = signature.args[1]
    return isinstance(other, TensorValue) and len(other.shape) == 2


def _again(operator: Any, inputs: CaseInputs, device: torch.device, first: tuple[torch.Tensor, ...]) -> More:
    place = _ROWS_OF[short_name(operator.name())]
    rows = inputs.args[place]
    count = rows.shape[0]
    many = torch.cat([rows] * (ROWS // count + 1))[:ROWS]
    args = tuple(many if number == place else one for number, one in enumerate(inputs.args))
    moved = copy_to(CaseInputs(args=args, kwargs=inputs.kwargs), device)
    with torch.no_grad():
        output = operator(*moved.args, **moved.kwargs)
    kept = [one.detach().cpu() for one in first]
    # The last whole repetition: what a kernel does not get to stands at the end.
    last = slice((ROWS // count - 1) * count, ROWS // count * count)
    second = tuple(like(one[last], two) for one, two in zip(parts_of(output), kept, strict=True))
    if any(one.shape != two.shape or one.dtype != two.dtype for one, two in zip(second, kept, strict=True)):
        return More(second=second)
    # Whether they are right is asked of the rule of the operator; here only whether they are the same bits.
    return More(second=second, varies=same_batch(tuple(kept), second, limit=float("inf")).notes)


WAY = Way(
    name="more_rows",
    why="sums in another order from some number of rows on, so that prefill and decode differ: a warning, no failure",
    applies=_applies,
    again=_again,
)
