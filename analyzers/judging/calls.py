"""The arguments of a call by their names in the schema."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.reference_ops.signatures import resolve, tensors_in

__all__ = ["first_float", "named", "several"]


def named(op: str, inputs: CaseInputs) -> dict[str, Any]:
    """Return every argument by name, those that were left out with their defaults. Raises Day0Error for an unknown operator."""
    found: dict[str, Any] = {}
    for place, one in enumerate(resolve(op)._schema.arguments):
        found[one.name] = inputs.args[place] if place < len(inputs.args) else inputs.kwargs.get(one.name, _default(one))
    return found


def _default(argument: torch.Argument) -> Any:
    return argument.default_value if argument.has_default_value() else None


def first_float(inputs: CaseInputs) -> torch.Tensor | None:
    """Return the first floating or complex tensor among the arguments."""
    tensors = tensors_in((inputs.args, inputs.kwargs))
    return next((one for one in tensors if one.is_floating_point() or one.is_complex()), None)


def several(inputs: CaseInputs) -> list[torch.Tensor]:
    """Return the tensor arguments in order."""
    return list(tensors_in((inputs.args, inputs.kwargs)))
