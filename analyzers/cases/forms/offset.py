"""Every tensor begins some elements behind the start of its memory."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, has_shared_memory
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if not has_shared_memory(signature):
        yield "", changed(signature, _change)


def _change(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"offset": value.offset + 3})


FORM = Form(
    name="offset",
    why="kernels that read from the start of the memory, or expect it to be aligned",
    derive=_derive,
    surroundings=True,
)
