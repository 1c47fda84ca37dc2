"""The same rows with one dimension fewer in front of them, or one more."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensor_values

__all__ = ["FORM"]

_OTHER_MEANING = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
"""Ranks say along which dimension the groups lie: with others the same ends mean something else, and nothing refuses them."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    """Join the first two dimensions of what has the highest rank, or put one of size 1 in front of it.

    Whoever derives calls has them held against the meta kernel: operators whose ranks are fixed refuse both.
    """
    rank = max((len(value.shape) for value in tensor_values(signature)), default=0)
    if rank < 2 or has_shared_memory(signature) or short_name(signature.op) in _OTHER_MEANING:
        return
    if any(value.stride != contiguous(value.shape) for value in tensor_values(signature) if len(value.shape) == rank):
        return
    if rank > 2:
        yield "fewer", changed(signature, lambda value: _with(value, rank, (_joined(value), *value.shape[2:])))
    yield "more", changed(signature, lambda value: _with(value, rank, (1, *value.shape)))


def _joined(value: TensorValue) -> int:
    return value.shape[0] * value.shape[1] if len(value.shape) > 1 else 0


def _with(value: TensorValue, rank: int, shape: tuple[int, ...]) -> TensorValue:
    if len(value.shape) != rank:
        return value
    return value.model_copy(update={"shape": shape, "stride": contiguous(shape)})


FORM = Form(
    name="ranks",
    why="paths that a kernel takes by the number of dimensions",
    derive=_derive,
)
