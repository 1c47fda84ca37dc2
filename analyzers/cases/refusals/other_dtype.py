"""Two dtypes in one product, and an index that is no whole number."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._values import changed
from day0.analyzers.cases.refusals._refusal import Refusal
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["REFUSAL"]

_SECOND = {"mm": "mat2", "bmm": "mat2", "addmm": "mat2", "mv": "vec", "dot": "tensor", "baddbmm": "batch2"}
_INDEX = {"gather": "index", "index_select": "index", "embedding": "indices", "scatter": "index", "index_copy": "index"}


def _derive(signature: Signature, contract: Operator | None) -> Iterator[Signature]:
    name = short_name(signature.op)
    if not signature.op.startswith("aten::"):
        return
    if name in _SECOND:
        yield changed(signature, _other, names=frozenset({_SECOND[name]}))
    if name in _INDEX:
        yield changed(signature, _float, names=frozenset({_INDEX[name]}))


def _other(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"dtype": "bfloat16" if value.dtype == "float32" else "float32", "range": None})


def _float(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"dtype": "float32", "range": None})


REFUSAL = Refusal(
    name="other_dtype",
    why="bits of one dtype are read as another",
    derive=_derive,
    lacks_dtype=True,
)
