"""Two records of a server: prompts that newly fail, gates that flipped, figures that went towards their limit."""

from __future__ import annotations

from collections import Counter

from day0.analyzers.diff.change import Change, Effect, Part, ordered
from day0.analyzers.diff.gates import flipped, moved
from day0.records import EndpointPrompt, EndpointReport

__all__ = ["RECORD", "compare"]

RECORD = EndpointReport

KINDS = ("newly failing", "gate", "status", "no longer there", "fixed", "new prompt", "metric")

LEVEL = {"pass": 0, "explained": 0, "not_judged": 1, "unanswered": 2, "fail": 2}
"""How bad a prompt's status is: a token that rounding explains is no worse than the same token."""

FAILING = 2


def compare(old: EndpointReport, new: EndpointReport) -> Part:
    """Compare prompt by prompt and gate by gate. Worse: a worse status, a worse verdict, a figure near its limit."""
    a = {one.name: one for one in old.results}
    b = {one.name: one for one in new.results}
    changes = [one for name in a.keys() & b.keys() for one in _prompt(a[name], b[name])]
    gone = [name for name in a if name not in b]
    changes += [Change(kind="no longer there", subject=name, old=a[name].status) for name in gone]
    changes += [_new(b[name]) for name in b if name not in a]
    changes += flipped("server", old.gates, new.gates)
    figures = [{name: one.value for name, one in side.figures.items() if one.value is not None} for side in (old, new)]
    changes += moved("server", figures[0], figures[1], (old.gates, new.gates))
    same = sum(not _prompt(a[name], b[name]) for name in a.keys() & b.keys())
    return Part(name="endpoint", summary=f"{_counts(old)} → {_counts(new)}", same=same, changes=ordered(changes, KINDS))


def _counts(report: EndpointReport) -> str:
    counts = Counter(one.status for one in report.results)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no prompts"


def _prompt(old: EndpointPrompt, new: EndpointPrompt) -> list[Change]:
    if old.status == new.status:
        return []
    step = LEVEL[new.status] - LEVEL[old.status]
    effect: Effect = "worse" if step > 0 else "better" if step < 0 else "other"
    kind = "status"
    if LEVEL[new.status] >= FAILING > LEVEL[old.status]:
        kind = "newly failing"
    elif LEVEL[old.status] >= FAILING > LEVEL[new.status]:
        kind = "fixed"
    return [
        Change(kind=kind, effect=effect, subject=new.name, old=old.status, new=new.status, reason=new.reason, weight=1)
    ]


def _new(one: EndpointPrompt) -> Change:
    failing = LEVEL[one.status] >= FAILING
    kind, effect = ("newly failing", "worse") if failing else ("new prompt", "other")
    return Change.model_validate(
        {"kind": kind, "effect": effect, "subject": one.name, "new": one.status, "reason": one.reason}
    )
