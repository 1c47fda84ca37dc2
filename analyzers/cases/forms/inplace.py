"""The same operator in place, on a packed tensor and on one that is not."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, has_shared_memory, is_dense
from day0.analyzers.cases.forms._variants import in_place
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    op = in_place(signature, contract)
    first = signature.args[0] if signature.args else None
    if op and not has_shared_memory(signature) and isinstance(first, TensorValue) and is_dense(first):
        made = signature.model_copy(update={"op": op})
        yield "packed", made
        yield "strided", changed(made, _every_second, names=frozenset({"self"}))


def _every_second(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"stride": tuple(2 * step for step in value.stride), "offset": value.offset + 1})


FORM = Form(
    name="inplace",
    why="results that stay in a packed copy, and writes between the elements of a view",
    derive=_derive,
    surroundings=True,
)
