"""What a record says in one line, whether its stage passed, and what has to be repaired."""

from __future__ import annotations

from collections import Counter

from day0.analyzers.checking.causes import Cause, causes
from day0.records import CanaryReport, Gap, Inventory, Lock, NumericsReport, StageResult, Trace

__all__ = ["of_canary", "of_inventory", "of_lock", "of_numerics", "of_trace"]

Verdict = tuple[bool, str, tuple[str, ...]]


def of_trace(trace: Trace) -> Verdict:
    """A trace that was made has passed."""
    calls = sum(phase.calls for phase in trace.phases)
    phases = ", ".join(phase.name for phase in trace.phases)
    text = f"{calls:,} calls, {len(trace.entries)} signatures in {phases} ({trace.mode})"
    return True, text, ()


def of_inventory(inventory: Inventory) -> Verdict:
    """Gaps are findings, not failures: the register stage decides whether they can be closed."""
    counts = Counter(entry.verdict for entry in inventory.entries)
    gaps = {entry.op for entry in inventory.entries if entry.is_gap}
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return (
        True,
        f"{text}; {len(gaps)} {'operator' if len(gaps) == 1 else 'operators'} with gaps on {inventory.device}",
        (),
    )


def of_lock(lock: Lock) -> Verdict:
    """A gap that nothing closes fails the stage."""
    kinds = Counter(entry.kind for entry in lock.entries)
    text = ", ".join(f"{count} by {kind}" for kind, count in kinds.most_common()) or "nothing to close"
    if lock.gaps:
        text = f"{len(lock.gaps)} gaps stay open; {text}"
    return not lock.gaps, text, tuple(_gap_text(gap) for gap in lock.gaps)


def _gap_text(gap: Gap) -> str:
    refused = "; ".join(f"{one.candidate}: {one.reason}" for one in gap.decisions) or "no candidate"
    return f"{gap.operator} ({', '.join(gap.dtypes)}), {gap.calls} calls, first in {gap.module or 'model'}: {refused}"


def of_numerics(report: NumericsReport) -> Verdict:
    """Every case has to pass; cases that could not be made are skipped and say why."""
    counts = Counter(case.status for case in report.cases)
    text = ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "no cases"
    found = causes(report.cases)
    problems = tuple(_cause_text(cause) for cause in found)
    if report.model is not None:
        text += f", model {report.model.status}"
        problems += (f"model: {report.model.reason}",) if report.model.status == "fail" else ()
    ran = any(case.status != "skipped" for case in report.cases) or _model_ran(report)
    if not ran:
        problems = ("no case could be run; the record says why for each", *problems)
    return ran and not problems, text, problems


def _model_ran(report: NumericsReport) -> bool:
    return not report.cases and report.model is not None and report.model.status != "skipped"


def _cause_text(cause: Cause) -> str:
    """Return one line for all cases that failed alike: the first of them, and how many there are."""
    first, more = cause.cases[0], len(cause.cases) - 1
    text = f"{first.op} {first.shapes} [{first.regime}] {first.implementation}: {first.status}: {first.reason}"
    return f"{text} (and {more} more like it)" if more else text


def of_canary(report: CanaryReport) -> Verdict:
    """Every stage that was asked for and fits the model has to pass, and one at least."""
    text = ", ".join(f"{stage.name} {_word(stage)}" for stage in report.stages)
    bad = [stage for stage in report.stages if stage.status == "fail"]
    passed = any(stage.status == "pass" for stage in report.stages) and not bad
    return passed, text, tuple(_stage_text(stage) for stage in bad)


def _word(stage: StageResult) -> str:
    return f"{stage.status} with warnings" if stage.warnings else stage.status


def _stage_text(stage: StageResult) -> str:
    first = f"; first to go wrong: {stage.diverged}" if stage.diverged else ""
    evidence = f"; evidence: {stage.evidence}" if stage.evidence else ""
    return f"{stage.name}: {stage.reason}{first}{evidence}"
