"""Failed cases by cause: one operator of one implementation that breaks one rule in one way is one thing to repair."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from day0.records import CaseResult

__all__ = ["Cause", "causes"]

_WORST = ("crashed", "hung", "fail", "fell_back", "undelegated", "xpass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Cases that failed alike."""

    op: str
    implementation: str
    status: str
    rule: str
    reason: str
    """What is said of them with figures left out."""
    cases: tuple[CaseResult, ...]


def causes(cases: Sequence[CaseResult]) -> tuple[Cause, ...]:
    """Group the failed cases; what ended its process first, then what has most cases."""
    groups: dict[tuple[str, str, str, str, str], list[CaseResult]] = {}
    for one in cases:
        if one.failed:
            key = (one.op, one.implementation, one.status, one.rule, _shape(one.reason))
            groups.setdefault(key, []).append(one)
    found = [
        Cause(op=op, implementation=who, status=status, rule=rule, reason=reason, cases=tuple(members))
        for (op, who, status, rule, reason), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (_WORST.index(one.status), -len(one.cases), one.op)))


def _shape(reason: str) -> str:
    """Return a reason without its figures."""
    return re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", reason)
