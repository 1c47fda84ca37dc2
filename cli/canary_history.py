"""The canaries of a run folder one after the other, the locks that passed, and the way back to one."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from day0.analyzers.canary.export import prometheus
from day0.cli.rundir import FILES, write_atomically
from day0.cli.session import Session
from day0.codec import body_hash
from day0.records import CanaryReport, LastGood, Lock

__all__ = ["HISTORY", "Line", "keep_history", "last_good", "read_history"]

HISTORY = "canary_history.jsonl"
LOCKS = "locks"
METRICS_FILE = "canary.prom"
MOST_BYTES = 64 << 20


class Line(BaseModel):
    """One canary."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    when: str
    device: str
    model: str
    source: str
    lock: str
    record: str
    """Hash of the record that this line speaks of."""
    passed: bool
    failed: str = ""
    """The stage that failed, and why."""
    whole: bool = True
    """Whether every stage of the plan was asked for."""
    planted: bool = False
    file: str = ""
    """Copy of the lock, where it passed."""


def keep_history(session: Session) -> None:
    """Add the canary of the folder to its history, unless its record stands there already; write its metrics."""
    found = session.folder.need(CanaryReport)
    write_atomically(session.folder.file(METRICS_FILE), prometheus(found.record, session.plan.model.source))
    lines = read_history(session.folder.path)
    if lines and lines[-1].record == found.digest:
        return
    report, lock = found.record, session.folder.need(Lock)
    bad = next((stage for stage in report.stages if stage.status == "fail"), None)
    whole = not any(stage.skip == "not_asked" for stage in report.stages)
    planted = "planted" in found.environment
    good = bad is None and whole and not planted and report.lock == body_hash(lock.record)
    line = Line(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        device=report.device,
        model=session.spec.fingerprint,
        source=session.plan.model.source,
        lock=report.lock,
        record=found.digest,
        passed=bad is None,
        failed=f"{bad.name}: {bad.reason}" if bad else "",
        whole=whole,
        planted=planted,
        file=_copy_lock(session, report.lock) if good else "",
    )
    _append(session.folder.file(HISTORY), line)


def last_good(folder: Path, device: str, model: str, *, other_than: str) -> LastGood | None:
    """Return the last lock that passed a whole canary of a model on a device, and whose copy is still there."""
    for line in reversed(read_history(folder)):
        same = line.device == device and line.model == model and line.lock != other_than
        if same and line.passed and line.file and (folder / line.file).is_file():
            return LastGood(lock=line.lock, file=line.file, when=line.when)
    return None


def read_history(folder: Path) -> tuple[Line, ...]:
    """Return the lines that can be read; one that was cut off is left out."""
    path = folder / HISTORY
    try:
        if path.stat().st_size > MOST_BYTES:
            return ()
        texts = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line for text in texts if (line := _line(text)) is not None)


def _line(text: str) -> Line | None:
    try:
        return Line.model_validate_json(text)
    except ValidationError:
        return None


def _append(path: Path, line: Line) -> None:
    # One write behind whatever stands there: a line that was cut off stays alone, and this one begins anew.
    cut_off = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("ab") as file:
        file.write(("\n" if cut_off else "").encode() + json.dumps(line.model_dump()).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _copy_lock(session: Session, digest: str) -> str:
    """Keep the lock under its hash and return its path below the run folder."""
    name = f"{LOCKS}/{digest.partition(':')[2][:16]}.lock"
    text = session.folder.read_text(FILES[Lock][1]) or ""
    if session.folder.read_text(name) != text:
        write_atomically(session.folder.file(name), text)
    return name
