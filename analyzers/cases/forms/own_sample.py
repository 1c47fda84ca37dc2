"""The calls that the operator's contract itself gives as samples: small, odd and corner ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch

from day0.analyzers.cases.case import Case, CaseInputs, Unfillable
from day0.analyzers.cases.forms._form import Form
from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.signatures import describe, dtype_of

__all__ = ["FORM", "derive", "inputs"]


def _samples(contract: Operator) -> list[Sample]:
    return list(contract.samples(torch.Generator().manual_seed(0)))


def derive(signature: Signature, contract: Operator | None, *, traced: bool = False) -> Iterator[tuple[str, Signature]]:
    """Yield the samples of one of our operators by number: those with the sizes of real models, or all others.

    Their floats have the dtypes of the traced call: what was chosen for those dtypes is what is to be checked.
    """
    if contract is None or not signature.op.startswith("day0::"):
        return
    for number, sample in enumerate(_samples(contract)):
        if (sample.kind == "traced") == traced:
            args, kwargs = _as_traced(sample, signature)
            yield str(number), describe(signature.op, args, kwargs)


def inputs(case: Case, contract: Operator | None) -> CaseInputs | Unfillable:
    """Return the arguments of a sample as the contract made them, in the dtypes of the case."""
    if contract is None:
        return Unfillable(reason="it has no contract, so no samples of its own")
    sample = _samples(contract)[int(case.form.partition(".")[2])]
    args, kwargs = _as_traced(sample, case.signature)
    return CaseInputs(args=args, kwargs=kwargs)


def _as_traced(sample: Sample, signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    pairs = list(zip_longest(sample.args, signature.args[: len(sample.args)]))
    pairs += [(made, signature.kwargs.get(name)) for name, made in sample.kwargs.items()]
    if any(_is_other(made, value) for made, value in pairs):
        return sample.args, sample.kwargs
    made = [_cast(*pair) for pair in pairs]
    return tuple(made[: len(sample.args)]), dict(zip(sample.kwargs, made[len(sample.args) :], strict=True))


def _is_other(made: Any, value: Value | None) -> bool:
    """Say whether one of the two holds codes and the other numbers: then the sample is of another layout."""
    if not isinstance(made, torch.Tensor) or not isinstance(value, TensorValue):
        return False
    return _holds_numbers(made.dtype) != _holds_numbers(dtype_of(value.dtype))


def _holds_numbers(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def _cast(made: Any, value: Value | None) -> Any:
    """Return an argument with the dtype of the traced one, where both are floats of two bytes or more."""
    if isinstance(made, list) and isinstance(value, ListValue):
        return [_cast(item, value.items[0] if value.items else None) for item in made]
    if not isinstance(made, torch.Tensor) or not isinstance(value, TensorValue):
        return made
    return made.to(dtype_of(value.dtype)) if _holds_numbers(made.dtype) else made


FORM = Form(
    name="own_sample",
    why="what its author knows to be hard: missing pages, empty groups, padding, layouts of other models",
    derive=derive,
    inputs=inputs,
    once=True,
)
