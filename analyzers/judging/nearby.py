"""Exact results of a decision that rounding inside the operator may turn at an edge."""

from __future__ import annotations

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.exact import differs, exact
from day0.analyzers.judging.judgement import Judgement
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensors_in

__all__ = ["exact_or_nearby"]


def exact_or_nearby(
    got: torch.Tensor, expected: torch.Tensor, inputs: CaseInputs, contract: Operator, number: int
) -> Judgement:
    """Every element is that of the given arguments, or of arguments that rounding cannot tell from them."""
    found = exact(got, expected)
    if found.passed or contract.nearby is None:
        return found
    wrong = differs(got, expected)
    for args, kwargs in contract.nearby(inputs.args, inputs.kwargs):
        wrong &= differs(got, list(tensors_in(contract.reference(*args, **kwargs)))[number].to(got.dtype))
    if bool(wrong.any()):
        return found
    return Judgement(
        passed=True,
        rule="exact",
        error=0.0,
        limit=0.0,
        notes=("a draw at the edge between two tokens: either is right",),
    )
