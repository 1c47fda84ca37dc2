"""The chain from a lock to the report that verified it."""

from __future__ import annotations

import pytest

from day0.codec import body_hash, decode, encode
from day0.records import CaseResult, CaseStatus, Decision, Identity, Lock, LockEntry, NumericsReport
from day0.registry.evidence import unverified, verify

TORCH = {"torch": "2.13.0", "device": "a card"}


def _entry(op: str = "aten::topk", *, id: str = "sort", source: str = "sha256:1") -> LockEntry:
    return LockEntry(
        operator=op,
        dtypes=("float32",),
        signatures=("aa", "bb"),
        identity=Identity(operator=op, contract=1, namespace="base", id=id, version="1.0"),
        kind="kernel",
        source_hash=source,
        origin=f"{id}.py",
        decisions=(),
    )


def _lock(*entries: LockEntry) -> Lock:
    return Lock(device="sim", namespace="base", model="sha256:0", entries=entries)


def _case(entry: LockEntry, status: CaseStatus, *, signature: str = "aa", by: str = "") -> CaseResult:
    return CaseResult(
        case=f"{signature}/ordinary/0",
        signature=signature,
        op=entry.operator,
        shapes="float32[4]",
        implementation=by or str(entry.identity),
        regime="ordinary",
        seed=0,
        status=status,
        rule="floats",
        reason="",
    )


def _report(lock: Lock, *cases: CaseResult, device: str = "sim") -> NumericsReport:
    return NumericsReport(device=device, lock=body_hash(lock), seed=0, cases=cases)


@pytest.mark.parametrize(
    ("statuses", "cases"),
    [
        (("pass", "pass"), 2),
        (("pass", "fell_back"), 2),
        (("pass", "skipped"), 1),
        (("pass", "fail"), 0),
        (("pass", "crashed"), 0),
        (("pass", "hung"), 0),
        (("pass", "undelegated"), 0),
        (("pass", "xpass"), 0),
        (("xfail", "xfail"), 0),
        (("skipped", "skipped"), 0),
        ((), 0),
    ],
)
def test_an_entry_is_verified_by_cases_that_ran_and_were_right(statuses: tuple[CaseStatus, ...], cases: int) -> None:
    entry = _entry()
    lock = _lock(entry)
    found = verify(lock, _report(lock, *(_case(entry, status) for status in statuses)), TORCH).entries[0].verified
    assert (found.cases if found else 0) == cases


def test_cases_of_the_device_s_own_kernel_or_of_other_calls_verify_nothing() -> None:
    entry = _entry()
    lock = _lock(entry)
    for case in (_case(entry, "pass", by="native"), _case(entry, "pass", signature="cc")):
        assert verify(lock, _report(lock, case), TORCH).entries[0].verified is None


def test_a_report_of_another_lock_takes_the_verification_away() -> None:
    entry, other = _entry(), _entry(source="sha256:2")
    lock = verify(_lock(entry), _report(_lock(entry), _case(entry, "pass")), TORCH)
    assert lock.entries[0].verified is not None
    assert verify(lock, _report(_lock(other), _case(other, "pass")), TORCH).entries[0].verified is None


def test_a_lock_stays_the_same_lock_when_it_is_verified_and_when_nobody_s_choice_was_added() -> None:
    entry = _entry()
    lock = _lock(entry)
    verified = verify(lock, _report(lock, _case(entry, "pass")), TORCH)
    more = entry.model_copy(
        update={"decisions": (Decision(candidate="x", accepted=False, reason="y"),), "origin": "/elsewhere/sort.py"}
    )
    assert body_hash(lock) == body_hash(verified) == body_hash(_lock(more))
    for other in (_entry(source="sha256:2"), _entry(id="heap"), entry.model_copy(update={"signatures": ("aa",)})):
        assert body_hash(_lock(other)) != body_hash(lock)


def test_a_verification_that_was_written_in_by_hand_is_found() -> None:
    entry = _entry()
    text = encode(_lock(entry), inputs={}, environment={})
    verified = verify(_lock(entry), _report(_lock(entry), _case(entry, "pass")), TORCH)
    forged = encode(verified, inputs={}, environment={})
    digest = next(line for line in text.splitlines() if '"sha256"' in line)
    mine = next(line for line in forged.splitlines() if '"sha256"' in line)
    assert digest != mine, "the file's own hash covers the verification"
    assert decode(Lock, forged, where="ops.lock", remake="").record == verified


def test_why_an_entry_counts_as_unverified() -> None:
    entry = _entry()
    lock = _lock(entry)
    report = _report(lock, _case(entry, "pass"))
    good = verify(lock, report, TORCH)
    assert unverified(good, "sim", TORCH, report=body_hash(report)) == ()
    changed = _lock(good.entries[0].model_copy(update={"source_hash": "sha256:other"}))
    for found, words in (
        (unverified(lock, "sim", TORCH), "no numerics report verified it"),
        (unverified(good, "cuda", TORCH), "measured on sim, not on cuda"),
        (unverified(good, "sim", {**TORCH, "torch": "2.14.0"}), "torch was 2.13.0 when it was measured, and is 2.14.0"),
        (unverified(good, "sim", {**TORCH, "device": "another card"}), "device was a card"),
        (unverified(good, "sim", TORCH, report="sha256:f"), "verified by the report"),
        (unverified(changed, "sim", TORCH), "its source was sha256:1 when it was measured, and is sha256:other"),
    ):
        assert len(found) == 1
        assert words in found[0]
        assert "aten::topk@1 base:sort==1.0 for float32" in found[0]
