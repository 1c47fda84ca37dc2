"""Two canary reports: stages that newly fail or pass, and metrics that moved."""

from __future__ import annotations

from collections import Counter

from day0.analyzers.diff.change import Change, Effect, Part, ordered
from day0.records import CanaryReport, StageResult

__all__ = ["RECORD", "compare"]

RECORD = CanaryReport

KINDS = ("newly failing", "status", "gate", "newly passing", "metric")

LEVEL = {"pass": 0, "skipped": 1, "fail": 2}

MOVED = 0.10
"""Figures of two runs on one machine differ by some per cent."""


def compare(old: CanaryReport, new: CanaryReport) -> Part:
    """Compare stage by stage. Worse: a worse status, and a gated metric that moved towards its limit by over 10 %."""
    a = {one.name: one for one in old.stages}
    b = {one.name: one for one in new.stages}
    changes: list[Change] = []
    for name in dict.fromkeys([*a, *b]):
        changes += _stage(name, a.get(name), b.get(name))
    touched = {one.subject for one in changes}
    summary = f"{_counts(old)} → {_counts(new)}"
    return Part(
        name="canary", summary=summary, same=len((a.keys() & b.keys()) - touched), changes=ordered(changes, KINDS)
    )


def _counts(report: CanaryReport) -> str:
    counts = Counter(one.status for one in report.stages)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no stages"


def _stage(name: str, old: StageResult | None, new: StageResult | None) -> list[Change]:
    before, after = (one.status if one else "not there" for one in (old, new))
    found = []
    if before != after:
        step = LEVEL.get(after, 1) - LEVEL.get(before, 1)
        effect: Effect = "worse" if step > 0 else "better" if step < 0 else "other"
        kind = "newly failing" if after == "fail" else "newly passing" if after == "pass" else "status"
        found.append(
            Change(kind=kind, effect=effect, subject=name, old=before, new=after, reason=new.reason if new else "")
        )
    if old is not None and new is not None and old.status == new.status != "skipped":
        found += [*_verdicts(name, old, new), *_metrics(name, old, new), *_operators(name, old, new)]
    return found


SURE = {"successful": 0, "inconclusive": 1, "failed": 2}


def _verdicts(name: str, old: StageResult, new: StageResult) -> list[Change]:
    """Return gates with another verdict, such as one that can no longer be decided."""
    before = {(gate.metric, gate.rule): gate.verdict for gate in old.gates}
    return [
        Change(
            kind="gate",
            effect="worse" if SURE[gate.verdict] > SURE[was] else "better",
            subject=name,
            old=was,
            new=gate.verdict,
            where=gate.metric,
            reason=gate.reason,
            weight=1.0,
        )
        for gate in new.gates
        if (was := before.get((gate.metric, gate.rule), gate.verdict)) != gate.verdict
    ]


def _operators(name: str, old: StageResult, new: StageResult) -> list[Change]:
    """Return operators whose time has moved, where both were timed by the device and not by the host."""
    before = {(one.operator, one.implementation): one for one in old.operators}
    found = []
    for one in new.operators:
        was = before.get((one.operator, one.implementation))
        if was is None or "wall" in (was.clock, one.clock) or was.clock != one.clock:
            continue
        if abs(one.seconds - was.seconds) > MOVED * max(one.seconds, was.seconds):
            found.append(
                Change(
                    kind="metric",
                    effect="other",
                    subject=name,
                    old=f"{was.seconds * 1e6:.4g} µs",
                    new=f"{one.seconds * 1e6:.4g} µs",
                    where=one.operator,
                    reason=one.implementation,
                    weight=abs(one.seconds - was.seconds) / (was.seconds or 1e-30),
                )
            )
    return found


def _metrics(name: str, old: StageResult, new: StageResult) -> list[Change]:
    rules = {gate.metric: gate for gate in new.gates}
    values = [{**one.metrics, **{g.metric: g.value for g in one.gates if g.value is not None}} for one in (old, new)]
    found = []
    for metric in sorted(values[0].keys() & values[1].keys()):
        a, b = values[0][metric], values[1][metric]
        if abs(b - a) <= MOVED * max(abs(a), abs(b)):
            continue
        gate = rules.get(metric)
        effect: Effect = "other"
        if gate is not None and gate.rule in ("<=", ">="):
            effect = "worse" if (b > a) == (gate.rule == "<=") else "better"
        found.append(
            Change(
                kind="gate" if gate else "metric",
                effect=effect,
                subject=name,
                old=f"{a:.4g}",
                new=f"{b:.4g}",
                where=metric,
                reason=f"gate {gate.rule} {gate.limit:g}" if gate else "",
                weight=abs(b - a) / (abs(a) or 1e-30),
            )
        )
    return found
