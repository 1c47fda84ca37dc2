"""The records of a run folder: each is what it says, each was made from those beside it and from the plan."""

from __future__ import annotations

import json
from typing import Any

from day0.cli.rundir import BESIDE, FILES, RunFolder
from day0.cli.session import Session
from day0.cli.stages import STAGES
from day0.cli.talk import Talk
from day0.cli.verifying.found import Found
from day0.cli.verifying.manifest import FILE
from day0.codec import Envelope, decode
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.records import (
    CanaryReport,
    Lock,
    NumericsReport,
    Record,
    Trace,
)

__all__ = ["Records", "compare_records", "read_records"]

Records = dict[type[Record], Envelope[Any]]

NAMED: dict[str, tuple[str, ...]] = {
    "workload": ("workload", "trace", "capture"),
    "device": ("device",),
    "choices": ("register",),
    "cases": ("check",),
    "gates": ("canary",),
}
"""Inputs of stages that follow from plan.json, and the parts of it that they come from."""


def read_records(folder: RunFolder, found: Found) -> Records:
    """Read every record that is there; one that is damaged is a problem and is left out."""
    vouched = folder.file(FILE).exists()
    records: Records = {}
    for kind, (stage, name) in {**FILES, **BESIDE}.items():
        try:
            text = folder.read_text(name)
            if text is None:
                continue
            records[kind] = decode(kind, text, where=name, remake=f"day0 {stage}")
        except Day0Error as error:
            part = "body" if error.facts else error.what.partition(":")[0] if error.what.startswith("body") else ""
            found.bad(name, error.what, part)
            continue
        found.checked["records by the hash of their body"] += 1
        # Where a manifest holds the hash of the bytes this says nothing more, and it takes long for large records.
        if not vouched and (line := _not_ours(text)):
            found.bad(name, f"line {line} is not written as day0 writes it, though it says the same", f"line {line}")
    return records


def _not_ours(text: str) -> int:
    """Return the first line that day0 would write otherwise; 0 where there is none."""
    again = json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    if again == text:
        return 0
    lines = zip(text.splitlines(), again.splitlines(), strict=False)
    return next((number for number, (a, b) in enumerate(lines, 1) if a != b), text.count("\n") + 1)


def compare_records(folder: RunFolder, records: Records, found: Found) -> None:
    """Compare what each record says of its inputs with the inputs themselves."""
    _stages(records, found)
    _own_words(records, found)
    _versions(records, found)
    _plan(folder, records, found)


LINKS = "hashes that a record notes of its inputs"


def _stages(records: Records, found: Found) -> None:
    """Check that a record was made from the records that lie beside it."""
    digests = {FILES[kind][0]: (kind, one.digest) for kind, one in records.items() if kind in FILES}
    for kind, envelope in records.items():
        for stage, noted in envelope.inputs.items():
            if kind not in FILES or stage not in digests:
                continue
            found.checked[LINKS] += 1
            source, digest = digests[stage]
            if noted != digest:
                what = f"made from another {FILES[source][1]}: {noted[:19]} noted, {digest[:19]} there"
                found.bad(FILES[kind][1], what, f"inputs.{stage}")


def _own_words(records: Records, found: Found) -> None:
    """Check the hashes that bodies hold: of the lock, of the model, of the report that verified an entry."""
    lock, trace = records.get(Lock), records.get(Trace)
    for user in (NumericsReport, CanaryReport):
        if lock is not None and user in records:
            _equal(found, FILES[user][1], "body.lock", records[user].record.lock, lock.digest, "ops.lock")
    if trace is not None:
        model = trace.record.model.fingerprint
        if lock is not None:
            _equal(found, "ops.lock", "body.model", lock.record.model, model, "the model in trace.json")
        for kind, envelope in records.items():
            if "model" in envelope.inputs and kind in FILES:
                noted = envelope.inputs["model"]
                _equal(found, FILES[kind][1], "inputs.model", noted, model, "the model in trace.json")
    if lock is not None:
        _verified(lock.record, records, found)


def _verified(lock: Lock, records: Records, found: Found) -> None:
    numerics = records.get(NumericsReport)
    for number, entry in enumerate(lock.entries):
        if entry.verified is None:
            continue
        part = f"body.entries.{number}.verified"
        _equal(found, "ops.lock", f"{part}.source_hash", entry.verified.source_hash, entry.source_hash, "its entry")
        if numerics is not None:
            _equal(found, "ops.lock", f"{part}.report", entry.verified.report, numerics.digest, "numerics.json")


def _equal(found: Found, file: str, part: str, noted: str, there: str, of: str) -> None:
    found.checked[LINKS] += 1
    if noted != there:
        found.bad(file, f"it notes {noted[:19]}, and {of} has {there[:19]}", part)


def _versions(records: Records, found: Found) -> None:
    """Check that a record's environment has the versions whose hash its inputs hold."""
    for kind, envelope in records.items():
        if kind in FILES and "versions" in envelope.inputs:
            facts = {name: envelope.environment.get(name, "") for name in ("torch", "transformers")}
            noted, there = envelope.inputs["versions"], hash_json(facts)
            _equal(found, FILES[kind][1], "environment", noted, there, "its list of torch and transformers")


def _plan(folder: RunFolder, records: Records, found: Found) -> None:
    """Check that the plan is the one that the records were made for. No model is opened and no file of a user is run."""
    try:
        plan = folder.read_plan()
    except Day0Error as error:
        found.bad("plan.json", error.what)
        return
    if plan is None:
        found.bad("plan.json", "missing: it says what the records were made for")
        return
    canary = records.get(CanaryReport)
    session = Session(
        plan=plan,
        folder=folder,
        talk=Talk(as_json=True),
        allow_unverified=canary.record.allow_unverified if canary is not None else False,
    )
    trace = records.get(Trace)
    if trace is not None and plan.model.source != trace.record.model.source:
        found.bad("plan.json", f"it names {plan.model.source}, the trace is of {trace.record.model.source}", "model")
    for name, hash_now in _of_plan(session, found).items():
        for stage in STAGES:
            envelope = records.get(stage.record)
            if envelope is not None and name in envelope.inputs:
                found.checked[LINKS] += 1
                if envelope.inputs[name] != hash_now:
                    what = f"not what {FILES[stage.record][1]} was made with (its input '{name}')"
                    found.bad("plan.json", what, ", ".join(NAMED[name]))


def _of_plan(session: Session, found: Found) -> dict[str, str]:
    """Return the hashes that can be computed from the plan alone; say which cannot, and why."""
    hashes: dict[str, str] = {}
    for name in NAMED:
        if name == "choices" and session.plan.register_.load:
            files = ", ".join(session.plan.register_.load)
            found.unchecked.append(f"namespaces that files of your own declare, which would have to be run: {files}")
            continue
        try:
            hashes[name] = session.hash_of(name)
        except Day0Error as error:
            found.unchecked.append(f"{name} of plan.json: {error.where}: {error.what}")
    return hashes
