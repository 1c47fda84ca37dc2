"""What is right: the golden and the same-dtype result, both computed on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to, magnitudes, widened
from day0.analyzers.judging.kinds import short_name
from day0.analyzers.judging.results import results
from day0.analyzers.terms import adds_up
from day0.errors import USER_ERRORS, Day0Error
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve, tensors_in

__all__ = ["RUN_ERRORS", "Reference", "references"]

RUN_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What torch, a kernel or a contract raises for one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What is right, as computed on the CPU."""

    golden: tuple[torch.Tensor, ...]
    golden_text: str
    same_dtype: tuple[torch.Tensor, ...] | None
    condition: float = 1.0
    """How much larger the sum of magnitudes is than the sum: cancellation makes every order of a sum less exact."""


def references(signature: Signature, inputs: CaseInputs, contract: Operator | None) -> Reference:
    """Compute the golden in float64 and the same-dtype result, both on the CPU.

    A contract's own reference is the meaning of the operator; without one torch's CPU kernel is.
    """
    operator = resolve(signature.op)
    compute: Callable[..., Any] = contract.reference if contract else operator
    same_dtype = _try(compute, operator, copy_to(inputs, torch.device("cpu")))
    has_floats = any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in((inputs.args, inputs.kwargs))
    )
    if not has_floats and same_dtype is not None:
        return Reference(golden=same_dtype, golden_text="exact on cpu", same_dtype=same_dtype)
    golden = _try(compute, operator, widened(inputs))
    if golden is not None:
        condition = _condition(signature, inputs, compute, operator, golden)
        return Reference(golden=golden, golden_text="float64 on cpu", same_dtype=same_dtype, condition=condition)
    if same_dtype is None:
        raise RuntimeError(f"neither float64 nor the traced dtype runs on the CPU for {signature.op}")
    return Reference(golden=same_dtype, golden_text="same dtype on cpu", same_dtype=None)


def _condition(
    signature: Signature,
    inputs: CaseInputs,
    compute: Callable[..., Any],
    operator: Any,
    golden: tuple[torch.Tensor, ...],
) -> float:
    """Return the norm of the result for the magnitudes of the inputs over the norm of the result, at least 1."""
    if not adds_up(short_name(signature.op)):
        return 1.0
    sizes = _try(compute, operator, magnitudes(widened(inputs)))
    own = float(torch.linalg.vector_norm(golden[0])) if golden[0].is_floating_point() else 0.0
    if sizes is None or own == 0.0:
        return 1.0
    ratio = float(torch.linalg.vector_norm(sizes[0])) / own
    return ratio if 1.0 < ratio < float("inf") else 1.0


def _try(compute: Callable[..., Any], operator: Any, inputs: CaseInputs) -> tuple[torch.Tensor, ...] | None:
    try:
        with torch.no_grad():
            output = compute(*inputs.args, **inputs.kwargs)
    except RUN_ERRORS:
        return None
    return tuple(results(operator, output, inputs))
