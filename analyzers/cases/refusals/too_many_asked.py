"""More values than there are."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.refusals._refusal import Refusal
from day0.analyzers.judging.kinds import short_name
from day0.records import ScalarValue, Signature, TensorValue
from day0.reference_ops._spec import Operator

__all__ = ["REFUSAL"]

_COUNTS = {"topk": 1, "kthvalue": 1}
"""By operator of torch, the place of the number of values."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[Signature]:
    place = _COUNTS.get(short_name(signature.op)) if signature.op.startswith("aten::") else None
    first = signature.args[0] if signature.args else None
    if place is None or not isinstance(first, TensorValue) or len(signature.args) <= place:
        return
    more = ScalarValue(type="int", value=str(max(first.shape, default=1) + 1))
    yield signature.model_copy(update={"args": (*signature.args[:place], more, *signature.args[place + 1 :])})


REFUSAL = Refusal(
    name="too_many_asked",
    why="the places behind the last value hold whatever stood in memory",
    derive=_derive,
)
