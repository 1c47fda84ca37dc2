"""Every tensor takes every second element of its memory, NaN between."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, has_shared_memory
from day0.analyzers.cases.kinds import keeps_order
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if not has_shared_memory(signature) and keeps_order(signature):
        yield "", changed(signature, _change)


def _change(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"stride": tuple(2 * step for step in value.stride), "offset": value.offset + 1})


FORM = Form(
    name="strided",
    why="kernels that take a tensor for packed, and that write or read between its elements",
    derive=_derive,
    surroundings=True,
)
