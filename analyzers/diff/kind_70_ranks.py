"""Two records of ranks: starts that newly fail, gates that flipped, times and memory."""

from __future__ import annotations

from day0.analyzers.diff.change import Change, Effect, Part, most, ordered
from day0.analyzers.diff.gates import flipped, moved
from day0.records import RanksReport, RanksRun

__all__ = ["RECORD", "compare"]

RECORD = RanksReport

KINDS = ("newly failing", "gate", "no longer there", "fixed", "new start", "metric")


def compare(old: RanksReport, new: RanksReport) -> Part:
    """Compare start by start. Worse: one that fails and passed, a worse verdict of a gate, a figure near its limit.

    Times are the host's, with all ranks on one machine: they are shown and are neither.
    """
    a, b = ({_name(run): run for run in side.runs} for side in (old, new))
    changes = [one for name in a.keys() & b.keys() for one in _run(name, a[name], b[name])]
    changes += [Change(kind="no longer there", subject=name, old=a[name].status) for name in a if name not in b]
    changes += [_alone(name, b[name]) for name in b if name not in a]
    touched = {one.subject for one in changes}
    summary = f"{_counts(old)} → {_counts(new)}"
    same = len((a.keys() & b.keys()) - touched)
    return Part(name="ranks", summary=summary, same=same, changes=ordered(changes, KINDS))


def _name(run: RanksRun) -> str:
    return (
        f"{run.ranks} ranks{' with whole experts' * run.whole_experts}{f', planted {run.planted}' * bool(run.planted)}"
    )


def _counts(report: RanksReport) -> str:
    passed = sum(run.status == "pass" for run in report.runs)
    return f"{passed} of {len(report.runs)} starts pass"


def _run(name: str, old: RanksRun, new: RanksRun) -> list[Change]:
    found = []
    if old.status != new.status:
        effect: Effect = "worse" if new.status == "fail" else "better"
        kind = "newly failing" if effect == "worse" else "fixed"
        found.append(_change(kind, effect, name, old.status, new))
    found += flipped(name, old.gates, new.gates)
    if old.status == new.status:
        found += moved(name, old.metrics, new.metrics, (old.gates, new.gates))
    return found


def _alone(name: str, run: RanksRun) -> Change:
    failing = run.status == "fail"
    return _change("newly failing" if failing else "new start", "worse" if failing else "other", name, "", run)


def _change(kind: str, effect: Effect, name: str, old: str, new: RanksRun) -> Change:
    return Change(
        kind=kind, effect=effect, subject=name, old=old, new=new.status, reason=most(new.reasons, 2), weight=1
    )
