"""Operators whose time moved by more than the clock's own noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from day0.analyzers.diff.change import Change
from day0.records import OperatorFigures

__all__ = ["NOISE", "SHARE", "slower"]

NOISE = {"sim": 0.10, "events": 0.25}
"""Share by which the time of a call has to grow. Simulated time is the same in every run; events of a device are one
pass on a machine that does other things too. The host's clock is no evidence of an operator's speed."""

SHARE = 0.01
"""Part of the pass that an operator has to take on one side: what nobody would notice is no regression."""


def slower(stage: str, old: Iterable[OperatorFigures], new: Iterable[OperatorFigures]) -> list[Change]:
    """Return operators that are slower or faster by the rule, whichever implementation runs."""
    a, b = _by_operator(old), _by_operator(new)
    totals = [sum(one.seconds for group in side.values() for one in group) for side in (a, b)]
    found = []
    for operator in a.keys() & b.keys():
        clocks = {one.clock for one in (*a[operator], *b[operator])}
        if len(clocks) > 1 or "wall" in clocks:
            continue
        before, after = (sum(one.seconds for one in side[operator]) for side in (a, b))
        calls = [sum(one.calls for one in side[operator]) or 1 for side in (a, b)]
        each = before / calls[0], after / calls[1]
        part = max(before / (totals[0] or 1.0), after / (totals[1] or 1.0))
        if part < SHARE or abs(each[1] - each[0]) <= NOISE[clocks.pop()] * min(each):
            continue
        found.append(_change(stage, operator, each, (a[operator], b[operator]), part))
    return found


def _by_operator(figures: Iterable[OperatorFigures]) -> dict[str, list[OperatorFigures]]:
    groups: dict[str, list[OperatorFigures]] = defaultdict(list)
    for one in figures:
        groups[one.operator].append(one)
    return groups


def _change(
    stage: str,
    operator: str,
    each: tuple[float, float],
    sides: tuple[list[OperatorFigures], list[OperatorFigures]],
    part: float,
) -> Change:
    worse = each[1] > each[0]
    names = [", ".join(dict.fromkeys(one.implementation for one in side)) for side in sides]
    who = names[1] if names[0] == names[1] else f"{names[0]} → {names[1]}"
    return Change(
        kind="slower" if worse else "faster",
        effect="worse" if worse else "better",
        subject=operator,
        old=f"{each[0] * 1e6:.4g} µs a call",
        new=f"{each[1] * 1e6:.4g} µs a call",
        where=stage,
        reason=f"{who}; {part:.0%} of the pass",
        weight=part * abs(each[1] - each[0]) / (min(each) or 1e-30),
    )
