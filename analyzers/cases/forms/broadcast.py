"""Single values, and single rows, in place of whole tensors: operators that go element by element repeat them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory, read_only
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve

__all__ = ["FORM"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    operator = resolve(signature.op)
    if torch.Tag.pointwise not in operator.tags or has_shared_memory(signature):
        return
    names = [one.name for one in operator._schema.arguments if "Tensor" in str(one.type)]
    others = frozenset(names[1:]) & read_only(signature)
    if others:
        yield "value", changed(signature, _value, names=others)
        yield "row", changed(signature, _row, names=others)


def _value(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"shape": (), "stride": (), "offset": 0})


def _row(value: TensorValue) -> TensorValue:
    if len(value.shape) < 2:
        return value
    shape = (1, *value.shape[1:])
    return value.model_copy(update={"shape": shape, "stride": contiguous(shape), "offset": 0})


FORM = Form(
    name="broadcast",
    why="kernels that read a repeated argument as if it were whole; masks, which are made of two values",
    derive=_derive,
    regimes=("ordinary", "masked"),
)
