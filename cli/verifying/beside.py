"""What lies beside the records: journals, histories, copies, and the files that records name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from day0.cli.canary_history import HISTORY, Line
from day0.cli.rundir import FILES, RunFolder
from day0.cli.verifying.found import Found
from day0.cli.verifying.records import Records
from day0.codec import decode
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.playbook import Playbook
from day0.records import CanaryReport, CaseResult, EndpointReport, Lock, NumericsReport
from day0.reports.clean import path_below

__all__ = ["compare_beside"]

JOURNAL = "numerics.cases.jsonl"
REPORT = "report/report.json"


def compare_beside(folder: RunFolder, records: Records, plan: Playbook | None, found: Found) -> None:
    """Compare everything that is no record of a stage with the records."""
    numerics, canary = records.get(NumericsReport), records.get(CanaryReport)
    if numerics is not None:
        _journal(folder, numerics.record, bool(plan and plan.check.expect), found)
    _history(folder, canary.digest if canary is not None else "", found)
    _named(folder, records, found)
    _report(folder, records, found)


def _lines(folder: RunFolder, name: str, found: Found) -> list[str]:
    try:
        return (folder.read_text(name) or "").splitlines()
    except Day0Error as error:
        found.bad(name, error.what)
        return []


def _journal(folder: RunFolder, numerics: NumericsReport, expected: bool, found: Found) -> None:
    """Compare each finished case with the report's. The report adds reproducers, and what was expected."""
    lines = _lines(folder, JOURNAL, found)
    if lines and not numerics.cases:
        found.unchecked.append(f"{JOURNAL}: numerics.json has no cases to compare it with")
        return
    cases = {one.case: one for one in numerics.cases}
    left_out = {"seconds", "reproducer", *(("status", "reason", "notes") if expected else ())}
    for number, text in enumerate(lines, 1):
        if number == 1:
            if not _is_key(text):
                found.bad(JOURNAL, "the first line is no hash of what the cases depend on", "line 1")
            continue
        try:
            mine = CaseResult.model_validate_json(text)
        except ValidationError:
            found.bad(JOURNAL, "this is no case, or it is cut off", f"line {number}")
            continue
        found.checked[f"cases in {JOURNAL}"] += 1
        for part in _differences(mine, cases.get(mine.case), left_out):
            found.bad(JOURNAL, f"not what numerics.json says of case {mine.case}", f"line {number}, {part}")


def _is_key(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    key = document.get("key") if isinstance(document, dict) else None
    return isinstance(key, str) and key.startswith("sha256:") and len(key) == 71


def _differences(mine: CaseResult, reported: CaseResult | None, left_out: set[str]) -> Iterator[str]:
    if reported is None:
        yield "case"
        return
    # Through JSON: there NaN is a word, and equal to itself.
    a, b = (one.model_dump(mode="json", exclude=left_out) for one in (mine, reported))
    yield from (name for name in a if repr(a[name]) != repr(b[name]))


def _history(folder: RunFolder, canary: str, found: Found) -> None:
    """Check the canaries so far: each line can be read, the last is of the record, and kept locks are what they were."""
    last: Line | None = None
    for number, text in enumerate(_lines(folder, HISTORY, found), 1):
        try:
            last = Line.model_validate_json(text)
        except ValidationError:
            found.bad(HISTORY, "this is no line of a history, or it is cut off", f"line {number}")
            continue
        found.checked[f"lines of {HISTORY}"] += 1
        if last.file:
            _copy(folder, last, number, found)
    if last is not None and canary and last.record != canary:
        found.bad(HISTORY, f"the last canary it knows is {last.record[:19]}, canary.json is {canary[:19]}", "record")


def _copy(folder: RunFolder, line: Line, number: int, found: Found) -> None:
    if path_below(line.file) != line.file:
        found.bad(HISTORY, f"it names {line.file}, which is not below the run folder", f"line {number}, file")
        return
    try:
        text = folder.read_text(line.file)
        if text is None:
            found.bad(line.file, f"missing: line {number} of {HISTORY} names it")
            return
        digest = decode(Lock, text, where=line.file, remake="day0 register").digest
    except Day0Error as error:
        found.bad(line.file, error.what, "body" if error.facts else "")
        return
    found.checked["kept locks"] += 1
    if digest != line.lock:
        found.bad(line.file, f"it says {digest[:19]}, and line {number} of {HISTORY} noted {line.lock[:19]}", "body")


def _named(folder: RunFolder, records: Records, found: Found) -> None:
    """Check that every file and folder that a record names is there."""
    for file, part, name in _names(records):
        found.checked["files that records name"] += 1
        if path_below(name) != name:
            found.bad(file, f"it names {name}, which is not below the run folder", part)
        elif not folder.file(name).exists():
            found.bad(name, f"missing: {file} names it ({part})")


def _names(records: Records) -> Iterable[tuple[str, str, str]]:
    numerics, canary, endpoint = (records.get(kind) for kind in (NumericsReport, CanaryReport, EndpointReport))
    if numerics is not None:
        for number, case in enumerate(numerics.record.cases):
            if case.reproducer:
                yield FILES[NumericsReport][1], f"body.cases.{number}.reproducer", case.reproducer
    if canary is not None:
        for number, stage in enumerate(canary.record.stages):
            if stage.evidence:
                yield FILES[CanaryReport][1], f"body.stages.{number}.evidence", stage.evidence
        if canary.record.last_good is not None:
            yield FILES[CanaryReport][1], "body.last_good.file", canary.record.last_good.file
    if endpoint is not None:
        for number, one in enumerate(endpoint.record.results):
            if one.body:
                yield "endpoint.json", f"body.results.{number}.body", one.body


def _report(folder: RunFolder, records: Records, found: Found) -> None:
    """Check the report's own hash, and that it was written from these records."""
    try:
        text = folder.read_text(REPORT)
        document = json.loads(text) if text is not None else None
    except (Day0Error, ValueError, RecursionError):
        found.bad(REPORT, "this is no report, or it is cut off")
        return
    if document is None:
        return
    found.checked["reports by the hash of their body"] += 1
    if not isinstance(document, dict) or document.get("sha256") != hash_json(document.get("body")):
        found.bad(REPORT, "the body was changed after it was written", "body")
        return
    inputs = document.get("inputs")
    digests = {FILES[kind][1]: one.digest for kind, one in records.items() if kind in FILES}
    for name, digest in digests.items():
        noted = inputs.get(name) if isinstance(inputs, dict) else None
        if noted != digest:
            what = f"it was written before {name} was made: run `day0 report --run {Path(folder.path)}`"
            found.bad(REPORT, what, f"inputs.{name}")
