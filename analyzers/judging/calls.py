"""The arguments of a call by their names in the schema."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.reference_ops.signatures import resolve, tensors_in

__all__ = ["first_float", "named", "several"]


def named(op: str, inputs: CaseInputs) -> dict[str, Any]:
    """Return every argument by name, those that were left out with their defaults. Raises Day0Error for an unknown operator."""
    found: dict[str, Any] = {}
    for place, (name, default) in enumerate(_arguments(resolve(op))):
        found[name] = inputs.args[place] if place < len(inputs.args) else inputs.kwargs.get(name, default)
    return found


@cache
def _arguments(operator: Any) -> tuple[tuple[str, Any], ...]:
    arguments = operator._schema.arguments
    return tuple((one.name, one.default_value if one.has_default_value() else None) for one in arguments)


def first_float(inputs: CaseInputs) -> torch.Tensor | None:
    """Return the first floating or complex tensor among the arguments."""
    tensors = tensors_in((inputs.args, inputs.kwargs))
    return next((one for one in tensors if one.is_floating_point() or one.is_complex()), None)


def several(inputs: CaseInputs) -> list[torch.Tensor]:
    """Return the tensor arguments in order."""
    return list(tensors_in((inputs.args, inputs.kwargs)))
