"""The last two dimensions of every tensor lie in memory in the other order."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory, is_dense
from day0.analyzers.cases.kinds import keeps_order
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if not has_shared_memory(signature) and keeps_order(signature):
        yield "", changed(signature, _change)


def _change(value: TensorValue) -> TensorValue:
    if len(value.shape) < 2 or not is_dense(value):
        return value
    *front, rows, columns = value.shape
    if value.stride[-1] != 1:
        return value.model_copy(update={"stride": contiguous(value.shape)})
    *steps, last, before = contiguous((*front, columns, rows))
    return value.model_copy(update={"stride": (*steps, before, last)})


FORM = Form(
    name="transposed",
    why="kernels that ignore strides",
    derive=_derive,
)
