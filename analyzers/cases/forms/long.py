"""Sizes past blocks of 1024, packed and strided: offsets that outgrow a buffer or a counter."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._resize import with_sizes
from day0.analyzers.cases.forms._values import changed
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]

SIZES = (1025, 4097)
MOST = 1 << 20
"""Elements of the largest tensor."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    for name, made in with_sizes(signature, SIZES, MOST):
        yield name, made
        yield f"{name}.strided", changed(made, _every_second)


def _every_second(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"stride": tuple(2 * step for step in value.stride)})


FORM = Form(
    name="long",
    why="buffers and offsets that are too short for long rows",
    derive=_derive,
    surroundings=True,
    thorough=True,
)
