"""Two numerics reports: cases that newly fail, are fixed, or are skipped now, errors that grew, cases of one side only."""

from __future__ import annotations

from collections import Counter

from day0.analyzers.diff.change import Change, Effect, Part, ordered
from day0.records import CaseResult, ModelCheck, NumericsReport

__all__ = ["RECORD", "compare"]

RECORD = NumericsReport

KINDS = (
    "newly failing",
    "error grew",
    "newly skipped",
    "status",
    "no longer there",
    "fixed",
    "newly passing",
    "new case",
    "error shrank",
)

LEVEL = {
    "pass": 0,
    "xfail": 1,
    "fell_back": 1,
    "skipped": 2,
    "xpass": 3,
    "undelegated": 3,
    "fail": 4,
    "crashed": 4,
    "hung": 4,
}
"""How bad a status is: a case that is skipped now says less than one that passed."""

FAILING = 3
"""From this level on a case fails the check."""

GROWN = 2.0
"""Errors change a little with every order of sums; twice as much is another computation."""


def compare(old: NumericsReport, new: NumericsReport) -> Part:
    """Compare two reports case by case. Worse: a worse status, and an error that doubled beyond the dtype's own."""
    a = {one.case: one for one in old.cases}
    b = {one.case: one for one in new.cases}
    changes: list[Change] = []
    for key in a.keys() & b.keys():
        changes += _case(a[key], b[key])
    changes += [_change("no longer there", "other", one, one.status, "") for key, one in a.items() if key not in b]
    for key, one in b.items():
        if key not in a:
            failing = _level(one) >= FAILING
            changes.append(
                _change(
                    "newly failing" if failing else "new case", "worse" if failing else "other", one, "", one.status
                )
            )
    changes += _model(old.model, new.model)
    same = sum(not _case(a[key], b[key]) for key in a.keys() & b.keys())
    return Part(name="check", summary=f"{_counts(old)} → {_counts(new)}", same=same, changes=ordered(changes, KINDS))


def _model(old: ModelCheck | None, new: ModelCheck | None) -> list[Change]:
    """Compare the model levels: another verdict, or another first module that is wrong."""
    before, after = ("not checked" if one is None else one.status for one in (old, new))
    place, reason = (new.first_divergent, new.reason) if new is not None else ("", "")
    moved = after == before == "fail" and old is not None and old.first_divergent != place
    if before == after and not moved:
        return []
    failing = after == "fail" and before != "fail"
    kind = "newly failing" if failing else "newly passing" if after == "pass" else "status"
    effect: Effect = "worse" if failing or before == "pass" else "better" if before == "fail" and not moved else "other"
    return [
        Change(kind=kind, effect=effect, subject="the whole model", old=before, new=after, where=place, reason=reason)
    ]


def _counts(report: NumericsReport) -> str:
    counts = Counter(one.status for one in report.cases)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no cases"


def _case(old: CaseResult, new: CaseResult) -> list[Change]:
    if (old.status, old.failed) != (new.status, new.failed):
        step = _level(new) - _level(old)
        effect: Effect = "worse" if step > 0 else "better" if step < 0 else "other"
        return [_change(_kind(old, new), effect, new, old.status, new.status)]
    if old.error is None or new.error is None:
        return []
    a, b = f"{old.error:.2g}", f"{new.error:.2g}"
    if new.error > GROWN * old.error and new.error > (new.yardstick or 0.0):
        return [
            _change("error grew", "worse", new, a, b, weight=new.error / (old.error or 1e-30), note=_grown(old, new))
        ]
    if old.error > GROWN * new.error and old.error > (old.yardstick or 0.0):
        weight = old.error / (new.error or 1e-30)
        return [_change("error shrank", "better", new, a, b, weight=weight, note=_grown(old, new))]
    return []


def _grown(old: CaseResult, new: CaseResult) -> str:
    """Return both errors as multiples of what the dtype itself costs."""
    if not (old.yardstick and new.yardstick):
        return ""
    return f"{(old.error or 0.0) / old.yardstick:.2g} → {(new.error or 0.0) / new.yardstick:.2g} times the dtype's own"


def _kind(old: CaseResult, new: CaseResult) -> str:
    if _level(new) >= FAILING > _level(old):
        return "newly failing"
    if _level(old) >= FAILING > _level(new):
        return "fixed" if new.status != "skipped" else "newly skipped"
    if new.status == "skipped":
        return "newly skipped"
    return "newly passing" if new.status == "pass" else "status"


def _level(case: CaseResult) -> int:
    """Return how bad a case is: a fallback in silence is a failure, a declared one is none."""
    return max(LEVEL[case.status], FAILING if case.failed else 0)


def _change(
    kind: str, effect: Effect, case: CaseResult, old: str, new: str, weight: float = 0.0, note: str = ""
) -> Change:
    limit = f"limit {case.limit:.2g}" if case.limit is not None else ""
    return Change(
        kind=kind,
        effect=effect,
        subject=case.op,
        old=old,
        new=new,
        where=f"{case.shapes} {case.regime}, {case.implementation}",
        reason="; ".join(text for text in (note, case.reason or limit) if text),
        weight=weight,
    )
