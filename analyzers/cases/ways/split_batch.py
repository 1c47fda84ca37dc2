"""The call in two parts along the first dimension: every row has the same result whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.kinds import is_aten, is_repeatable, mutated, says_values
from day0.analyzers.cases.ways._results import like, parts_of
from day0.analyzers.cases.ways._way import More, Way
from day0.analyzers.judging.kinds import short_name
from day0.records import ScalarValue, Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve

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
    names = [one.name for one in resolve(signature.op)._schema.arguments]
    given = dict(zip(names, signature.args, strict=False)) | signature.kwargs
    dim = given.get("dim")
    if dim is None:  # argmax then works on everything, the others along the last dimension
        return short_name(signature.op) in ("topk", "sort") and "stable" not in given
    return isinstance(dim, ScalarValue) and dim.type == "int" and int(dim.value) in (-1, rank - 1)


def _batched(signature: Signature) -> TensorValue | None:
    place = 1 if short_name(signature.op) == "embedding" else 0
    value = signature.args[place] if len(signature.args) > place else None
    return value if isinstance(value, TensorValue) else None


def _again(operator: Any, inputs: CaseInputs, device: torch.device, first: tuple[torch.Tensor, ...]) -> More:
    name = short_name(operator.name())
    places = (1,) if name == "embedding" else (0, 1) if name in _BOTH else (0,)
    size = inputs.args[places[0]].shape[0]
    parts = []
    for begin, end in ((0, (size + 1) // 2), ((size + 1) // 2, size)):
        args = tuple(one[begin:end] if place in places else one for place, one in enumerate(inputs.args))
        part = copy_to(CaseInputs(args=args, kwargs=inputs.kwargs), device)
        with torch.no_grad():
            output = operator(*part.args, **part.kwargs)
        parts.append(parts_of(output))
    pairs = zip(zip(*parts, strict=True), first, strict=True)
    return More(second=tuple(like(torch.cat(two), one) for two, one in pairs))


WAY = Way(
    name="split_batch",
    why="rows that see each other, and paths that only small or only large batches take",
    applies=_applies,
    again=_again,
)
