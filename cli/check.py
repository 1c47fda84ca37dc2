"""`day0 check`: the glue between a session and the workers, with a journal so that nothing finished is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path

from day0.analyzers.cases.captured import find_captured, index_hash
from day0.analyzers.cases.case import Case
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.checking.check import Kept, run_cases, write_reproducers
from day0.analyzers.checking.expect import apply_expected
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.pool import Pool, starter
from day0.analyzers.checking.setting import Loaded, Setting
from day0.cli.check_model import model_level, wants_operators
from day0.cli.rundir import write_atomically
from day0.cli.session import Session
from day0.cli.threads import threads_for
from day0.codec import body_hash
from day0.devices.open import device_count
from day0.errors import Day0Error
from day0.hashing import hash_file, hash_json
from day0.records import CaseResult, Lock, ModelCheck, NumericsReport, Trace
from day0.registry.dispatch import activate

__all__ = ["make_numerics"]

JOURNAL = "numerics.cases.jsonl"
MOST_JOBS = 8


def make_numerics(session: Session) -> NumericsReport:
    """Stage 4. Finished cases are kept in `numerics.cases.jsonl`, so a killed run goes on where it was."""
    trace, lock = session.folder.need(Trace).record, session.folder.need(Lock).record
    _refuse(session, trace, lock)
    results = _operators(session, trace, lock) if wants_operators(session) else ()
    return NumericsReport(
        device=session.profile.name,
        lock=body_hash(lock),
        seed=session.plan.check.seed,
        cases=results,
        model=_model(session, trace, lock, results),
    )


def _traced(one: CaseResult) -> bool:
    """Say whether the model itself makes the call, and not only a case that was derived from it."""
    return one.case == f"{one.signature}-{one.regime}-{one.seed}"


def _operators(session: Session, trace: Trace, lock: Lock) -> tuple[CaseResult, ...]:
    cases = _cases(session, trace)
    setting = _setting(session, trace, lock)
    loaded = Loaded(
        device=session.device,
        lock=lock,
        implementations=session.implementations,
        cases={case.key: case for case in cases},
        limits=Limits(case_timeout_s=setting.plan.case_timeout_s, max_bytes=setting.plan.max_case_mib << 20),
    )
    start, folder = starter(loaded, setting), session.folder.file(".check")
    workers = _jobs(session, loaded)
    with _journal(session, _key(session, trace, lock)) as kept, Pool(start, folder, loaded.limits, workers) as pool:
        for note in pool.notes:
            session.talk.note(note)
        results = run_cases(pool, cases, lock, kept, session.talk.progress)
        results = apply_expected(results, setting.plan.expect, _today())
        results = _with_reproducers(session, pool, setting, results)
    # Wall times differ from run to run: they stay in the journal, so that equal inputs give an equal report.
    return tuple(one.model_copy(update={"seconds": None}) for one in results)


def _model(session: Session, trace: Trace, lock: Lock, results: tuple[CaseResult, ...]) -> ModelCheck | None:
    """Check the whole model in this process, unless a kernel was seen to end or to hold the process it runs in."""
    if session.plan.check.level == "ops":
        return None
    if deadly := next((one for one in results if one.status in ("crashed", "hung") and _traced(one)), None):
        reason = f"{deadly.op} {deadly.status} when it ran alone, and the whole model would meet it again"
        return ModelCheck(status="skipped", reason=reason, seed=session.plan.check.seed)
    with threads_for(trace), activate(lock, session.device, session.implementations):
        return model_level(session, trace)


def _refuse(session: Session, trace: Trace, lock: Lock) -> None:
    where = str(session.folder.path)
    if not trace.entries:
        raise Day0Error(where, "the trace is empty, and comparing nothing is an error", hint="trace a model first")
    if lock.device != session.profile.name:
        what = f"the lock was made for {lock.device}, and this is {session.profile.name}"
        raise Day0Error(where, what, hint=f"lock again: day0 register --run {where}")


def _cases(session: Session, trace: Trace) -> list[Case]:
    where = str(session.folder.path)
    captured = find_captured(session.folder.path)
    cases = list(plan_cases(trace, session.plan.check, captured, devices=device_count(session.device)))
    if not cases:
        raise Day0Error(where, "no case was planned, and comparing nothing is an error", hint="see check in plan.json")
    return cases


def _setting(session: Session, trace: Trace, lock: Lock) -> Setting:
    plan = session.plan
    files = tuple(str(Path(one).resolve()) for one in plan.register_.load)
    return Setting(
        profile=session.profile,
        lock=lock,
        trace=trace,
        plan=plan.check,
        files=files,
        without=plan.register_.without,
        captured=find_captured(session.folder.path),
    )


def _jobs(session: Session, loaded: Loaded) -> int:
    """Return how many workers: as asked for, else one for each core on a device that is the host."""
    if session.jobs:
        return session.jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS) if loaded.device.type in ("cpu", "sim") else 1


def _today() -> date:
    return datetime.now(UTC).date()


def _key(session: Session, trace: Trace, lock: Lock) -> str:
    """Hash what a case's result depends on. What is expected of it is no part of that."""
    plan = session.plan.check.model_dump(mode="json", exclude={"expect"})
    # Cases that passed on a device without a fault say nothing about one with it, and the other way round.
    parts = [body_hash(trace), body_hash(lock), session.hash_of("device"), plan, index_hash(session.folder.path)]
    return hash_json([*parts, *session.plants_in("check")])


@contextmanager
def _journal(session: Session, key: str) -> Iterator[Kept]:
    path = session.folder.file(JOURNAL)
    done = _finished(session, key)
    text = "".join([json.dumps({"key": key}) + "\n", *(one.model_dump_json() + "\n" for one in done.values())])
    write_atomically(path, text)
    with path.open("a", encoding="utf-8") as file:

        def keep(result: CaseResult) -> None:
            file.write(result.model_dump_json() + "\n")
            file.flush()

        yield Kept(done=done, keep=keep)


def _finished(session: Session, key: str) -> dict[str, CaseResult]:
    """Read the cases of an earlier run with the same inputs; a last line that is cut off is dropped."""
    lines = (session.folder.read_text(JOURNAL) or "").splitlines()
    if session.force or not lines or lines[0] != json.dumps({"key": key}):
        return {}
    done: dict[str, CaseResult] = {}
    for line in lines[1:]:
        try:
            result = CaseResult.model_validate_json(line)
        except ValueError:
            break
        # A case that failed is run again with the rest: its cause may lie outside of what is hashed.
        if result.status in ("pass", "fell_back") and not result.failed:
            done[result.case] = result
    return done


def _with_reproducers(
    session: Session, pool: Pool, setting: Setting, results: tuple[CaseResult, ...]
) -> tuple[CaseResult, ...]:
    """Write `repro/<case>/` for failed cases and name it in their results."""
    folder = session.folder.file("repro")
    shutil.rmtree(folder, ignore_errors=True)
    if not any(one.failed for one in results):
        return results
    extra = {
        "profile": setting.profile.model_dump(mode="json", by_alias=True),
        "plan": setting.plan.model_copy(update={"expect": ()}).model_dump(mode="json"),
        "files": [{"path": one, "sha256": hash_file(Path(one))} for one in setting.files],
        "without": list(setting.without),
        "plants": list(session.plants_in("check")),
    }
    written, left_out = write_reproducers(pool, folder, results, extra, session.talk.progress)
    for reason in left_out:
        session.talk.note(f"no reproducer: {reason}")
    return tuple(
        one.model_copy(update={"reproducer": f"repro/{written[one.case]}"}) if one.case in written else one
        for one in results
    )
