"""All cases of a check through the workers: finished ones are kept, dead workers become results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0.analyzers.cases.case import Case
from day0.analyzers.checking.outcome import Outcome
from day0.analyzers.checking.pool import Answer, Job, Pool
from day0.devices.sim.planting import PLANTED
from day0.records import CaseResult, Lock

__all__ = ["Kept", "run_cases", "to_result", "write_reproducers"]

MOST_REPRODUCERS = 20

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Results of an earlier run, and what to do with a new one."""

    done: Mapping[str, CaseResult]
    keep: Callable[[CaseResult], None]


def run_cases(pool: Pool, cases: Sequence[Case], lock: Lock, kept: Kept, progress: Progress) -> tuple[CaseResult, ...]:
    """Return one result for each case, in their order, whatever the order in which workers answer."""
    found = dict(kept.done)
    owners = {name: str(entry.identity) for entry in lock.entries for name in entry.signatures}
    waiting = {case.key: case for case in cases if case.key not in found}
    jobs = [
        Job(question={"case": case.key}, name=case.key, blame=f"{case.signature.op} {owners.get(case.signature_id)}")
        for case in waiting.values()
    ]
    done = len(cases) - len(jobs)
    for answer in pool.run(jobs):
        case = waiting[answer.job.name]
        result = to_result(answer, case, owners.get(case.signature_id, "native"))
        kept.keep(result)
        found[case.key] = result
        done += 1
        progress(f"checking {case.signature.op}", done, len(cases))
    return tuple(found[case.key] for case in cases)


def to_result(answer: Answer, case: Case, implementation: str) -> CaseResult:
    """Return the result of a case from what its worker said, or from how it ended."""
    outcome = Outcome(case=case, implementation=implementation)
    notes = (answer.note,) if answer.note else ()
    if answer.message is None:
        make = {"hung": outcome.hung, "slow": outcome.skipped}.get(answer.kind, outcome.crashed)
        return make(answer.reason).model_copy(update={"notes": notes})
    result = CaseResult.model_validate_json(answer.message["result"])
    _count_reached(answer.message["reached"])
    if not answer.kind:
        return result
    # Run once more, alone: what happened the first time may have been the doing of an earlier case.
    if result.failed:
        return result.model_copy(update={"notes": (*result.notes, f"after other cases: {answer.reason}")})
    make = outcome.hung if answer.kind == "hung" else outcome.crashed
    return make(f"after other cases, and alone it passes: {answer.reason}").model_copy(update={"notes": result.notes})


def _count_reached(reached: Mapping[str, Mapping[str, int]]) -> None:
    """Count here what planted faults were reached in a worker."""
    for standing in (PLANTED.get() or {}).values():
        for one in standing:
            if one.name in reached:
                one.reached.update(reached[one.name])


def write_reproducers(
    pool: Pool, folder: Path, results: Sequence[CaseResult], extra: dict[str, Any], progress: Progress
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write a folder for failed cases; one of each operator and rule first.

    Returns the name of the folder by case, and why others have none.
    """
    chosen, rest = _choose([one for one in results if one.failed and one.status != "xpass"])
    written: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for number, result in enumerate(chosen):
        progress(f"reproducer of {result.op}", number, len(chosen))
        reason = _write(pool, folder / result.case, result, extra)
        if reason:
            reasons[f"{result.op}: {reason}"] += 1
        else:
            written[result.case] = result.case
    if rest:
        reasons[f"{rest} more failed cases have none; {MOST_REPRODUCERS} are written, each operator and rule first"] = 1
    return written, tuple(reasons)


def _choose(failed: list[CaseResult]) -> tuple[list[CaseResult], int]:
    first: dict[tuple[str, str, str], CaseResult] = {}
    for one in failed:
        first.setdefault((one.op, one.status, one.rule), one)
    ordered = [*first.values(), *(one for one in failed if one not in first.values())]
    return ordered[:MOST_REPRODUCERS], max(0, len(failed) - MOST_REPRODUCERS)


def _write(pool: Pool, folder: Path, result: CaseResult, extra: dict[str, Any]) -> str:
    for golden in (True, False):  # where it was the reference that killed the process
        question = {
            "write": result.case,
            "folder": str(folder),
            "result": result.model_dump_json(),
            "extra": {**extra, "golden": golden},
        }
        answer = pool.ask(Job(question=question, name=result.case, blame="reproducers"))
        if answer.message is not None and "left_out" in answer.message:
            return str(answer.message["left_out"])
    return f"writing it failed: {answer.reason}"
