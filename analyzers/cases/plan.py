"""Which cases a trace is checked with."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.case import Case
from day0.analyzers.judging.kinds import is_move, short_name, without_values
from day0.playbook import CheckPlan
from day0.records import Signature, Trace
from day0.reference_ops.signatures import resolve, tensor_values

__all__ = ["plan_cases"]


def plan_cases(trace: Trace, plan: CheckPlan) -> Iterator[Case]:
    """Yield the cases of a trace in a fixed order: each signature under each regime that says something about it."""
    for entry in sorted(trace.entries, key=lambda one: (one.signature.op, one.id)):
        for regime in plan.regimes:
            if regime == "ordinary" or _regime_applies(entry.signature, regime):
                yield Case(signature_id=entry.id, signature=entry.signature, regime=regime, seed=plan.seed)


_TIED = frozenset(
    [
        "topk",
        "sort",
        "argsort",
        "max",
        "min",
        "argmax",
        "argmin",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
        "sign",
        "round",
        "floor",
        "ceil",
        "maximum",
        "minimum",
        "relu",
    ]
)
"""Operators for which equal values, and zeros, are a case of their own."""


def _regime_applies(signature: Signature, regime: str) -> bool:
    if not any("float" in value.dtype for value in tensor_values(signature)):
        return False
    if without_values(signature.op) or resolve(signature.op).is_view:
        return False
    if regime == "ties":
        return signature.op.startswith("day0::") or short_name(signature.op) in _TIED
    return not is_move(signature.op)
