"""The same call with bfloat16 or float16 where all its floats are float32: what models run in."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensor_values

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    floats = {value.dtype for value in tensor_values(signature) if "float" in value.dtype}
    if floats != {"float32"}:
        return
    for name in ("bfloat16", "float16"):
        yield name, changed(signature, lambda value, name=name: _cast(value, name))  # type: ignore[misc]  # a default


def _cast(value: TensorValue, name: str) -> TensorValue:
    return value.model_copy(update={"dtype": name}) if value.dtype == "float32" else value


FORM = Form(
    name="half",
    why="half types read with the bits of the other, sums that are kept in them",
    derive=_derive,
    thorough=True,
)
