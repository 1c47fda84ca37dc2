"""Gates of two stages, servers or starts of ranks: which flipped, and which figures went towards their limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from day0.analyzers.diff.change import Change, Effect
from day0.records import GateResult

__all__ = ["MOVED", "flipped", "moved"]

MOVED = 0.10
"""Figures of two runs on one machine differ by some per cent."""

SURE = {"successful": 0, "inconclusive": 1, "failed": 2}


def flipped(subject: str, old: Iterable[GateResult], new: Iterable[GateResult]) -> list[Change]:
    """Return gates with another verdict, such as one that can no longer be decided."""
    before = {(gate.metric, gate.rule): gate for gate in old}
    found = []
    for gate in new:
        was = before.get((gate.metric, gate.rule))
        if was is not None and was.verdict != gate.verdict:
            found.append(
                Change(
                    kind="gate",
                    effect="worse" if SURE[gate.verdict] > SURE[was.verdict] else "better",
                    subject=subject,
                    old=was.verdict,
                    new=gate.verdict,
                    where=gate.metric,
                    reason=gate.reason,
                    weight=1.0,
                )
            )
    return found


def moved(
    subject: str,
    old: Mapping[str, float],
    new: Mapping[str, float],
    gates: tuple[Iterable[GateResult], Iterable[GateResult]],
) -> list[Change]:
    """Return figures of both sides that moved by over 10 %.

    A gated one is worse where it also went over 10 % of the way that was left to its limit, and its interval, where
    there is one, lies apart from the other's. That is `better` the other way round; anything else is neither.
    """
    before = {gate.metric: gate for gate in gates[0]}
    after = {gate.metric: gate for gate in gates[1]}
    found = []
    for metric in sorted(old.keys() & new.keys()):
        a, b = old[metric], new[metric]
        if abs(b - a) <= MOVED * max(abs(a), abs(b)):
            continue
        gate = after.get(metric)
        found.append(
            Change(
                kind="gate" if gate else "metric",
                effect=_effect(a, b, before.get(metric), gate) if gate else "other",
                subject=subject,
                old=f"{a:.4g}",
                new=f"{b:.4g}",
                where=metric,
                reason=f"gate {gate.rule} {gate.limit:g}" if gate else "",
                weight=abs(b - a) / (abs(a) or 1e-30),
            )
        )
    return found


def _effect(a: float, b: float, before: GateResult | None, gate: GateResult) -> Effect:
    if gate.rule == "==" or (before is not None and _overlap(before, gate)):
        return "other"
    worse = (b > a) == (gate.rule == "<=")
    # From the side that is nearer to the limit the step looks largest: both directions get one measure.
    way = max(abs(gate.limit - a), abs(gate.limit - b))
    return "other" if abs(b - a) <= MOVED * way else "worse" if worse else "better"


def _overlap(a: GateResult, b: GateResult) -> bool:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low <= b.high and b.low <= a.high
