"""Known failures: a strict list. What it names has to fail as it says; what it does not name has to pass."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from day0.errors import Day0Error, near_names
from day0.playbook import ExpectedFailure
from day0.records import CaseResult
from day0.yamlfile import read_yaml, validate_yaml

__all__ = ["apply_expected", "read_expected"]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    expect: tuple[ExpectedFailure, ...]


def read_expected(path: Path) -> tuple[ExpectedFailure, ...]:
    """Read a YAML file with a list `expect`. Raises Day0Error for a file that is damaged, and for one without reasons."""
    return validate_yaml(_File, read_yaml(path)).expect


def apply_expected(
    results: Sequence[CaseResult], expected: Sequence[ExpectedFailure], today: date
) -> tuple[CaseResult, ...]:
    """Return the results with `xfail` and `xpass` where a failure was expected.

    Raises Day0Error for an entry that matches no case: it would excuse what nobody looked at.
    """
    for number, entry in enumerate(expected, start=1):
        if not any(_matches(entry, one) for one in results):
            raise _unmatched(number, entry, results)
    return tuple(_applied(one, expected, today) for one in results)


def _applied(result: CaseResult, expected: Sequence[ExpectedFailure], today: date) -> CaseResult:
    mine = [entry for entry in expected if _matches(entry, result)]
    entry = next((one for one in mine if one.status == result.status), mine[0] if mine else None)
    if entry is None or result.status == "skipped":
        return result
    told = f"expected to be {entry.status}: {entry.reason}"
    if entry.until is not None and today > entry.until:
        return result.model_copy(update={"notes": (*result.notes, f"{told}; that was until {entry.until}")})
    if not result.failed:
        return result.model_copy(update={"status": "xpass", "reason": f"it passes, and was {told}"})
    if result.status != entry.status:
        return result.model_copy(update={"notes": (*result.notes, told)})
    return result.model_copy(update={"status": "xfail", "reason": f"{result.reason} ({told})"})


def _matches(entry: ExpectedFailure, result: CaseResult) -> bool:
    return (
        entry.op in (result.op, result.op.partition(".")[0])
        and entry.shapes in ("", result.shapes)
        and entry.signature in ("", result.signature)
        and entry.regime in ("", result.regime)
    )


def _unmatched(number: int, entry: ExpectedFailure, results: Sequence[CaseResult]) -> Day0Error:
    where = f"expected failure {number}: {entry.op}"
    ops = tuple(dict.fromkeys(one.op for one in results))
    of_op = [one for one in results if entry.op in (one.op, one.op.partition(".")[0])]
    if not of_op:
        return Day0Error(where, "no case is of this operator", hint=near_names(entry.op, ops) or f"there are {ops[:3]}")
    facts = tuple(dict.fromkeys(f"{one.shapes} [{one.regime}] {one.signature}" for one in of_op))[:5]
    return Day0Error(where, "no case of this operator is as it says", facts=facts, hint="take it from one of these")
