"""The same operator into a result that it is given: packed, and with another order of memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._values import contiguous, has_shared_memory
from day0.analyzers.cases.forms._variants import out
from day0.analyzers.cases.meta import results_on_meta
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature, TensorValue
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import dtype_name

__all__ = ["FORM"]


_CHOICES = frozenset({"argmax", "argmin"})
"""Which of equal values they name is open, so that a result beside the given one proves nothing."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    op = out(signature, contract) if short_name(signature.op) not in _CHOICES else ""
    made = results_on_meta(signature) if op and not has_shared_memory(signature) else None
    if made is not None and len(made) == 1:
        packed = _given(made[0], 1)
        for name, value in (("packed", packed), ("strided", _given(made[0], 2))):
            yield name, signature.model_copy(update={"op": op, "kwargs": {**signature.kwargs, "out": value}})


def _given(result: torch.Tensor, step: int) -> TensorValue:
    shape = tuple(result.shape)
    stride = tuple(step * one for one in contiguous(shape))
    return TensorValue(shape=shape, dtype=dtype_name(result.dtype), stride=stride, offset=step - 1)


FORM = Form(
    name="out",
    why="results that stay in a packed copy, fallbacks that cannot write into an argument",
    derive=_derive,
    surroundings=True,
)
