"""The call in two parts along the first dimension: every row has the same result whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import is_aten, is_repeatable, mutated, says_values
from day0.analyzers.cases.ways._way import Called, Way
from day0.analyzers.judging.kinds import short_name
from day0.records import ScalarValue, Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensors_in

__all__ = ["WAY"]

_ROWWISE = frozenset(
    ["mm", "bmm", "silu", "sigmoid", "tanh", "gelu", "exp", "rsqrt", "relu", "neg", "embedding", "native_layer_norm"]
)
"""Operators of torch whose first results follow from the same rows of the first argument, or of the first two."""
_LAST = frozenset(["_softmax", "_log_softmax", "softmax", "topk", "sort", "argmax"])
"""Likewise, where they work along the last dimension."""
_BOTH = frozenset({"bmm"})


def _applies(signature: Signature, contract: Operator | None) -> bool:
    if not is_aten(signature) or mutated(signature) or not (says_values(signature) and is_repeatable(signature)):
        return False
    name, tensor = short_name(signature.op), _batched(signature)
    if tensor is None or len(tensor.shape) < 2 or tensor.shape[0] < 2:
        return False
    return name in _ROWWISE or (name in _LAST and _along_last(signature, len(tensor.shape)))


def _along_last(signature: Signature, rank: int) -> bool:
    dims = [one.value for one in signature.args[1:] if isinstance(one, ScalarValue) and one.type == "int"]
    given = dims[1:2] if short_name(signature.op) == "topk" else dims[:1]
    return all(int(dim) in (-1, rank - 1) for dim in given)


def _batched(signature: Signature) -> TensorValue | None:
    place = 1 if short_name(signature.op) == "embedding" else 0
    value = signature.args[place] if len(signature.args) > place else None
    return value if isinstance(value, TensorValue) else None


def _run(operator: Any, moved: CaseInputs, inputs: CaseInputs) -> Called:
    name = operator.name().removeprefix("aten::").partition(".")[0]
    places = (1,) if name == "embedding" else (0, 1) if name in _BOTH else (0,)
    output = operator(*moved.args, **moved.kwargs)
    device, size = next(tensors_in(moved.args)).device, inputs.args[places[0]].shape[0]
    parts = []
    for begin, end in ((0, (size + 1) // 2), ((size + 1) // 2, size)):
        args = tuple(one[begin:end] if place in places else one for place, one in enumerate(inputs.args))
        part = copy_to(CaseInputs(args=args, kwargs=inputs.kwargs), device)
        parts.append([one.detach().cpu() for one in tensors_in(operator(*part.args, **part.kwargs))])
    whole = list(tensors_in(output))
    return Called(
        output=output, second=tuple(_joined(two, one) for two, one in zip(zip(*parts, strict=True), whole, strict=True))
    )


def _joined(parts: tuple[torch.Tensor, ...], like: torch.Tensor) -> torch.Tensor:
    """Put parts together, with the strides of the whole result: those are not what is compared."""
    joined = torch.cat(parts)
    if joined.shape != like.shape:
        return joined
    return torch.empty_strided(joined.shape, like.stride(), dtype=joined.dtype).copy_(joined)


WAY = Way(
    name="split_batch",
    why="rows that see each other, and paths that only small or only large batches take",
    applies=_applies,
    run=_run,
)
