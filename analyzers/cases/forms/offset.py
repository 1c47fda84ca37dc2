"""Every tensor begins some elements behind the start of its memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, has_shared_memory
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


_ALIGNED = frozenset({"_grouped_mm", "_scaled_mm", "_scaled_grouped_mm"})
"""torch itself refuses these where the memory does not begin at a multiple of 16 bytes, on every device."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if not has_shared_memory(signature):
        step = 16 if short_name(signature.op) in _ALIGNED else 3
        yield "", changed(signature, partial(_change, step=step))


def _change(value: TensorValue, *, step: int) -> TensorValue:
    return value.model_copy(update={"offset": value.offset + step})


FORM = Form(
    name="offset",
    why="kernels that read from the start of the memory, or expect it to be aligned",
    derive=_derive,
    surroundings=True,
)
