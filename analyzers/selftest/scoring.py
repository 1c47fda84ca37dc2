"""From judged cases to scores: how a fault was found, which half it belongs to, how sure a rate is."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

from day0.analyzers.cases.case import Case
from day0.analyzers.selftest.judged import Judged
from day0.records import Alarm, CaseResult, FaultScore, Found, How

__all__ = [
    "NOT_MEASURED",
    "RIGHT",
    "alarm_of",
    "found_of",
    "held_out",
    "how_found",
    "is_suspect",
    "is_warned",
    "rate",
    "strongest",
    "wilson",
]

RIGHT = ("pass", "fell_back", "skipped", "xfail")
"""Statuses of a case that has nothing against a kernel; a fallback that is there without a fault is one."""

NOT_MEASURED = Found(how="not_measured")


def held_out(name: str) -> bool:
    """Say whether a fault is in the half that nobody looks at while cases and rules are made."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 1


def wilson(hits: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a rate by Wilson's score, which is right near 0 and 1 too; (0, 1) for no trial.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if total == 0:
        return 0.0, 1.0
    rate, square = hits / total, z * z
    middle = (rate + square / (2 * total)) / (1 + square / total)
    half = z / (1 + square / total) * math.sqrt(rate * (1 - rate) / total + square / (4 * total * total))
    # At the ends rounding would leave a little.
    return 0.0 if hits == 0 else middle - half, 1.0 if hits == total else middle + half


def how_found(case: Case, result: CaseResult) -> How:
    """Say what kind of evidence one reported case is."""
    if result.status in ("crashed", "hung"):
        return "raised"
    if result.status in ("fell_back", "undelegated"):
        return "not_on_device"
    if result.status == "pass":
        return "warned"
    if "reported" in (case.regime, case.form, case.way):
        return "reported"
    ordinary = case.regime == "ordinary" and case.form == "traced" and case.way == "plain" and not case.refusal
    return "values" if ordinary else "other_cases"


_STRONGEST: tuple[How, ...] = ("values", "other_cases", "warned", "reported", "not_on_device", "raised")


def is_suspect(result: CaseResult, clean: str = "pass") -> bool:
    """Say whether a result speaks of a fault, where the same case without it has the status `clean`."""
    return (
        clean in ("pass", "fell_back") and result.status != clean and result.status not in ("pass", "skipped", "xfail")
    )


def is_warned(result: CaseResult, clean: CaseResult | None = None) -> bool:
    """Say whether a right result carries a warning that is not there without the fault."""
    if clean is not None and (clean.status != "pass" or clean.warnings):
        return False
    return result.status == "pass" and bool(result.warnings)


def strongest(judged: Sequence[Judged], *, warns: bool = False) -> list[Judged]:
    """Return the cases in which the faulty kernel was called and something was reported, strongest evidence first.

    Warnings are something only where the fault `warns`.
    """
    hits = [one for one in judged if one.reached and (is_suspect(one.result) or (warns and is_warned(one.result)))]
    return sorted(hits, key=lambda one: _STRONGEST.index(how_found(one.case, one.result)))


def found_of(judged: Sequence[Judged], best: Judged | None, *, warns: bool = False) -> Found:
    """Sum up what the check said of one fault; `best` is the case that shows it best, and passes without the fault."""
    reached = [one for one in judged if one.reached]
    hits = strongest(judged, warns=warns)
    if best is None:
        return Found(how="missed", reached=len(reached), found=0, reason=_why_missed(judged, reached, hits))
    return Found(
        how=how_found(best.case, best.result),
        rule=best.result.rule,
        reached=len(reached),
        found=len(hits),
        first=f"{best.result.op} {best.result.shapes} {best.case.key.partition('-')[2]}",
        reason="; ".join(best.result.warnings) if best.result.status == "pass" else best.result.reason,
    )


def _why_missed(judged: Sequence[Judged], reached: Sequence[Judged], hits: Sequence[Judged]) -> str:
    if not judged:
        return "no call that the check is tried on comes to its operators"
    if not reached:
        return f"none of {len(judged)} cases came to the faulty kernel"
    if hits:
        return f"what was reported in {len(hits)} of {len(reached)} cases is reported without the fault too"
    return f"the faulty kernel ran in {len(reached)} cases, and none of them was judged wrong"


def alarm_of(result: CaseResult, *, broken: str = "") -> Alarm | None:
    """Return what was said against something right, or that the check itself broke; None where all is well."""
    if result.status in RIGHT and not broken:
        return None
    return Alarm(
        op=result.op,
        shapes=result.shapes,
        implementation=result.implementation,
        case=result.case,
        status=result.status,
        rule=result.rule,
        reason=result.reason,
    )


def rate(scores: Iterable[FaultScore]) -> tuple[int, int]:
    """Return how many of some faults were found, and how many there are."""
    many = list(scores)
    return sum(one.is_found for one in many), len(many)
