"""The chain from a lock to the numerics report that verified it, so that nobody runs what nobody measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from day0.codec import body_hash
from day0.records import CaseResult, Lock, LockEntry, NumericsReport, Verification

__all__ = ["unverified", "verify"]

GOOD = frozenset({"pass", "fell_back"})
"""Statuses that measured something and found it right. A skipped case measured nothing."""


def verify(lock: Lock, report: NumericsReport, environment: Mapping[str, str]) -> Lock:
    """Return the lock with a verification on every entry that the report found right, and on no other.

    An entry is right if at least one case of its calls ran through its implementation, and no such case failed.
    A report of another lock verifies nothing.
    """
    own = report.cases if report.lock == body_hash(lock) else ()
    digest = body_hash(report)
    entries = (
        entry.model_copy(update={"verified": _verification(entry, own, digest, report.device, environment)})
        for entry in lock.entries
    )
    return lock.model_copy(update={"entries": tuple(entries)})


def _verification(
    entry: LockEntry, cases: Iterable[CaseResult], report: str, device: str, environment: Mapping[str, str]
) -> Verification | None:
    wanted, name = frozenset(entry.signatures), str(entry.identity)
    mine = [case for case in cases if case.signature in wanted and case.implementation == name]
    good = sum(case.status in GOOD for case in mine)
    if not good or any(case.failed for case in mine):
        return None
    return Verification(
        report=report,
        source_hash=entry.source_hash,
        device=device,
        environment=dict(sorted(environment.items())),
        cases=good,
    )


def unverified(lock: Lock, device: str, environment: Mapping[str, str], *, report: str = "") -> tuple[str, ...]:
    """Say of every entry that is not verified here why not; an empty tuple means that the whole lock is.

    `environment` is what the result must have been measured with; `report`, where it is given, the only report that counts.
    """
    reasons = ((entry, _why_not(entry, device, environment, report)) for entry in lock.entries)
    return tuple(
        f"{entry.identity} for {', '.join(dict.fromkeys(entry.dtypes))}: {reason}"
        for entry, reason in reasons
        if reason
    )


def _why_not(entry: LockEntry, device: str, environment: Mapping[str, str], report: str) -> str:
    found = entry.verified
    if found is None:
        return "no numerics report verified it"
    if found.source_hash != entry.source_hash:
        return f"its source was {found.source_hash[:19]} when it was measured, and is {entry.source_hash[:19]}"
    if found.device != device:
        return f"it was measured on {found.device}, not on {device}"
    if report and found.report != report:
        return f"it was verified by the report {found.report[:19]}, not by {report[:19]}"
    for name, value in sorted(environment.items()):
        if (had := found.environment.get(name, "")) != value:
            return f"{name} was {had or 'not recorded'} when it was measured, and is {value or 'none'}"
    return ""
