"""Two canary reports: stages that newly fail or pass, gates that flipped, slower operators, metrics that moved."""

from __future__ import annotations

from collections import Counter

from day0.analyzers.diff.change import Change, Effect, Part, ordered
from day0.analyzers.diff.gates import flipped, moved
from day0.analyzers.diff.times import slower
from day0.records import CanaryReport, StageResult

__all__ = ["RECORD", "compare"]

RECORD = CanaryReport

KINDS = ("newly failing", "status", "gate", "slower", "newly passing", "faster", "metric")

LEVEL = {"pass": 0, "skipped": 1, "fail": 2}


def compare(old: CanaryReport, new: CanaryReport) -> Part:
    """Compare stage by stage. Worse: a worse status or verdict of a gate, a gated figure near its limit, a slower operator."""
    a = {one.name: one for one in old.stages}
    b = {one.name: one for one in new.stages}
    changes: list[Change] = []
    for name in dict.fromkeys([*a, *b]):
        changes += _stage(name, a.get(name), b.get(name))
    summary = f"{_counts(old)} → {_counts(new)}"
    same = sum(not _stage(name, a[name], b[name]) for name in a.keys() & b.keys())
    return Part(name="canary", summary=summary, same=same, changes=ordered(changes, KINDS))


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
    if old is not None and new is not None and "skipped" not in (old.status, new.status):
        found += flipped(name, old.gates, new.gates)
        if old.status == new.status:
            found += [*_metrics(name, old, new), *slower(name, old.operators, new.operators)]
    return found


def _metrics(name: str, old: StageResult, new: StageResult) -> list[Change]:
    values = [{**one.metrics, **{g.metric: g.value for g in one.gates if g.value is not None}} for one in (old, new)]
    return moved(name, values[0], values[1], (old.gates, new.gates))
