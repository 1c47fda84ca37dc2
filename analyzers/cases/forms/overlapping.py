"""Rows of every tensor that is only read overlap: each begins one element after the one before."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory, read_only
from day0.analyzers.cases.kinds import keeps_order
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if not has_shared_memory(signature) and keeps_order(signature):
        yield "", changed(signature, _change, names=read_only(signature))


def _change(value: TensorValue) -> TensorValue:
    if (
        "float" not in value.dtype or len(value.shape) < 2 or 0 in value.shape
    ):  # places that share memory would share an index
        return value
    steps = contiguous((*value.shape[:-2], value.shape[-2] + value.shape[-1]))
    return value.model_copy(update={"stride": (*steps[:-1], 1, 1)})


FORM = Form(
    name="overlapping",
    why="kernels that compute addresses from sizes",
    derive=_derive,
)
