"""Whether each stage passed, and what no stage can ask of itself: whether the records belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from day0.codec import body_hash
from day0.records import Gap, StageResult
from day0.reports.bundle import STAGES, Bundle
from day0.reports.figures import counted, joined
from day0.reports.model_check import judged, model_problems
from day0.reports.summary import Stage, StageStatus
from day0.reports.words import word

__all__ = ["judge_stages", "uncovered"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    status: StageStatus
    headline: str
    problems: tuple[str, ...] = ()


def judge_stages(bundle: Bundle) -> tuple[Stage, ...]:
    """Return the five stages, each with its status, one line and the problems that keep it from passing."""
    judges: tuple[Callable[[Bundle], _Found], ...] = (_trace, _inventory, _register, _check, _canary)
    stages: list[Stage] = []
    for info, judge in zip(STAGES, judges, strict=True):
        found = judge(bundle)
        blocked_by = next((stage.name for stage in stages if stage.status != "pass"), "")
        if found.status == "missing":
            why = f"not run: {blocked_by} did not pass" if blocked_by else f"there is no {info.file} yet"
            found = _Found(status="missing", headline=why)
        stages.append(
            Stage.model_validate(
                {
                    "name": info.name,
                    "question": info.question,
                    "status": found.status,
                    "headline": found.headline,
                    "problems": found.problems,
                    "blocked_by": blocked_by,
                    "file": info.file,
                    "command": bundle.command(info.name, *(("--force",) if found.status == "stale" else ())),
                }
            )
        )
    return tuple(stages)


_MISSING = _Found(status="missing", headline="")


def _stale(reason: str) -> _Found:
    return _Found(status="stale", headline=f"out of date: {reason}", problems=(reason,))


def _trace(bundle: Bundle) -> _Found:
    trace = bundle.trace
    calls = sum(phase.calls for phase in trace.phases)
    text = f"{counted(calls, 'call')}, {counted(len(trace.entries), 'signature')} in {_phases(bundle)} ({trace.mode})"
    if not trace.entries:
        return _Found(status="fail", headline="no call was recorded", problems=(trace.mode_reason or "empty trace",))
    return _Found(status="pass", headline=text)


def _phases(bundle: Bundle) -> str:
    return joined([phase.name for phase in bundle.trace.phases if phase.calls]) or "no phase"


def _inventory(bundle: Bundle) -> _Found:
    inventory = bundle.inventory
    if inventory is None:
        return _MISSING
    if inventory.model != bundle.trace.model.source:
        return _stale(f"it was made for {inventory.model}, the trace is of {bundle.trace.model.source}")
    traced = {entry.id for entry in bundle.trace.entries}
    lacking = len(traced - {entry.id for entry in inventory.entries})
    if lacking:
        return _stale(f"{counted(lacking, 'traced signature')} not in it")
    gaps = {entry.op for entry in inventory.entries if entry.is_gap}
    known = {entry.op for entry in inventory.entries}
    if not gaps:
        return _Found(status="pass", headline=f"{inventory.device} has all {counted(len(known), 'operator')}")
    text = f"{len(gaps):,} of {counted(len(known), 'operator')} have gaps on {inventory.device}"
    return _Found(status="pass", headline=text)


def uncovered(bundle: Bundle) -> frozenset[str]:
    """Return the ids of gap signatures that the lock neither closes nor lists as a gap."""
    if bundle.inventory is None or bundle.lock is None:
        return frozenset()
    known = {name for entry in bundle.lock.entries for name in entry.signatures}
    known |= {name for gap in bundle.lock.gaps for name in gap.signatures}
    return frozenset(entry.id for entry in bundle.inventory.entries if entry.is_gap) - known


def _register(bundle: Bundle) -> _Found:
    lock, inventory = bundle.lock, bundle.inventory
    if lock is None:
        return _MISSING
    if inventory is None:
        return _stale("there is no inventory.json beside it")
    if lock.model != bundle.trace.model.fingerprint:
        return _stale("it was made for a model with another fingerprint")
    if lock.device != inventory.device:
        return _stale(f"it was made for {lock.device}, the inventory for {inventory.device}")
    if unknown := uncovered(bundle):
        return _stale(f"the inventory has {counted(len(unknown), 'gap')} that it does not know")
    kinds = Counter(entry.kind.replace("_", " ") for entry in lock.entries)
    text = joined([f"{count} by {kind}" for kind, count in kinds.most_common()])
    if lock.gaps:
        rest = f" (closed: {text})" if text else ""
        headline = f"{counted(len(lock.gaps), 'gap stays', 'gaps stay')} open{rest}"
        share = {entry.id: entry.share for entry in inventory.entries}
        gaps = sorted(lock.gaps, key=lambda gap: -sum(share.get(name, 0.0) for name in gap.signatures))
        return _Found(status="fail", headline=headline, problems=tuple(_gap_text(gap) for gap in gaps))
    return _Found(status="pass", headline=f"gaps closed: {text}" if text else "nothing to close")


def _gap_text(gap: Gap) -> str:
    return f"{gap.operator} ({', '.join(dict.fromkeys(gap.dtypes))}) has no implementation: {gap.reason}"


def _check(bundle: Bundle) -> _Found:
    numerics, lock = bundle.numerics, bundle.lock
    if numerics is None:
        return _MISSING
    if lock is None:
        return _stale("there is no ops.lock beside it")
    if numerics.lock != body_hash(lock):
        return _stale("it was made with another lock")
    if numerics.device != lock.device:
        return _stale(f"it was made on {numerics.device}, the lock is for {lock.device}")
    lacking = len({entry.id for entry in bundle.trace.entries} - {case.signature for case in numerics.cases})
    if numerics.cases and lacking:
        return _stale(f"{counted(lacking, 'traced signature')} without a case in it")
    counts = Counter(case.status for case in numerics.cases)
    headline = joined([f"{count:,} {word(status)}" for status, count in counts.most_common()]) or "no cases"
    bad = tuple(
        f"{case.op} {case.shapes} ({case.regime}): {word(case.status)}: {case.reason}"
        for case in numerics.cases
        if case.failed
    )
    if numerics.model is not None:
        headline += f"; model {word(numerics.model.status)}"
    bad += model_problems(numerics)
    if not bad and not counts.keys() - {"skipped"} and not (judged(numerics) and not numerics.cases):
        bad = ("no case could be judged",)
    return _Found(status="fail" if bad else "pass", headline=headline, problems=bad)


def _canary(bundle: Bundle) -> _Found:
    canary, lock = bundle.canary, bundle.lock
    if canary is None:
        return _MISSING
    if lock is None:
        return _stale("there is no ops.lock beside it")
    if canary.lock != body_hash(lock):
        return _stale("it was made with another lock")
    if canary.device != lock.device:
        return _stale(f"it was made on {canary.device}, the lock is for {lock.device}")
    left_out = [stage.name for stage in canary.stages if stage.skip == "not_asked"]
    if left_out and not any(stage.status == "fail" for stage in canary.stages):
        return _stale(f"only some of its stages were asked for; not {joined(left_out)}")
    fitting = [stage for stage in canary.stages if stage.skip != "unfit"]
    passed = [stage for stage in fitting if stage.status == "pass"]
    headline = f"{len(passed)} of {counted(len(fitting), 'stage')} met their gates"
    undecided = sum(len(stage.warnings) for stage in passed)
    headline += f", {counted(undecided, 'gate')} not decided" if undecided else ""
    if passed and len(passed) == len(fitting):
        return _Found(status="pass", headline=headline)
    failed = tuple(_failure(stage) for stage in canary.stages if stage.status == "fail")
    return _Found(status="fail", headline=headline, problems=failed or ("no stage was run to its end",))


def _failure(stage: StageResult) -> str:
    first = f"; first to go wrong: {stage.diverged}" if stage.diverged else ""
    return f"{stage.name}: {stage.reason or 'a gate was not met'}{first}"
