"""A copy into a tensor that is there already: strided, transposed, and long enough to outgrow a block."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import contiguous, has_shared_memory
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]

_COPIES = frozenset({"clone", "_to_copy", "copy"})
"""Operators of torch that devices make out of a fresh tensor and `copy_`."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    source = signature.args[0] if signature.args else None
    if short_name(signature.op) not in _COPIES or not isinstance(source, TensorValue) or has_shared_memory(signature):
        return
    for name, shape in (("traced", source.shape), ("long", (5, 1025))):
        given = source.model_copy(update={"shape": shape, "stride": contiguous(shape), "offset": 0})
        for order, steps in (("strided", _strided(shape)), ("transposed", _transposed(shape))):
            into = given.model_copy(update={"stride": steps, "offset": 1, "range": None})
            yield f"{name}.{order}", Signature(op="aten::copy_", args=(into, given))


def _strided(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(2 * step for step in contiguous(shape))


def _transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed(contiguous(tuple(reversed(shape)))))


FORM = Form(
    name="copied",
    why="copies that lose strides or whose offsets wrap",
    derive=_derive,
    surroundings=True,
)
