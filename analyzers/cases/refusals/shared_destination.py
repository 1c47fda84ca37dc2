"""A write into a tensor several of whose elements are one place in memory."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._values import changed, contiguous, has_shared_memory
from day0.analyzers.cases.forms._variants import in_place
from day0.analyzers.cases.kinds import mutated
from day0.analyzers.cases.refusals._refusal import Refusal
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["REFUSAL"]


def _derive(signature: Signature, contract: Operator | None) -> Iterator[Signature]:
    if not signature.op.startswith("aten::") or has_shared_memory(signature):
        return
    op = signature.op if "self" in mutated(signature) else in_place(signature, contract)
    first = signature.args[0] if signature.args else None
    if op and isinstance(first, TensorValue) and len(first.shape) >= 1 and first.shape[0] > 1 and 0 not in first.shape:
        made = signature.model_copy(update={"op": op})
        yield changed(made, _shared, names=frozenset({"self"}))


def _shared(value: TensorValue) -> TensorValue:
    return value.model_copy(update={"stride": (0, *contiguous(value.shape[1:]))})


REFUSAL = Refusal(
    name="shared_destination",
    why="one of the writes wins, another one each time",
    derive=_derive,
)
