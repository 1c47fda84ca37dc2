"""What to do next: what blocks first, by its share of the model; then what would make a ready model faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from day0.reports.bundle import Bundle
from day0.reports.figures import counted, share_text
from day0.reports.findings import Weights
from day0.reports.model_check import model_actions
from day0.reports.summary import Action, Case, Choice, OpenGap, Stage, Step
from day0.reports.words import word

__all__ = ["plan_actions"]


def plan_actions(
    bundle: Bundle,
    weights: Weights,
    *,
    stages: tuple[Stage, ...],
    gaps: tuple[OpenGap, ...],
    failures: tuple[Case, ...],
    chosen: tuple[Choice, ...],
    steps: tuple[Step, ...],
) -> tuple[Action, ...]:
    """Return everything there is to do, most important first. What does not belong together is made again first."""
    status = {stage.name: stage.status for stage in stages}
    stale = [stage for stage in stages if stage.status == "stale"][:1]
    waiting = [stage for stage in stages if stage.status == "missing"][:1]
    blocking = [
        *(_close(bundle, gap) for gap in gaps if bundle.lock is not None),
        *(_repairs(bundle, failures) if status["check"] == "fail" else ()),
        *(model_actions(bundle) if status["check"] == "fail" else ()),
        *(_gate(bundle, step) for step in steps if step.status == "fail" and status["canary"] == "fail"),
    ]
    blocking.sort(key=lambda action: -action.share)
    # A stage that only waits for a repair is not a thing to do; one that waits for nobody is.
    ready = [stage for stage in waiting if not stage.blocked_by]
    faster = [*_fallbacks(bundle, chosen), *_syncs(bundle, weights)]
    faster.sort(key=lambda action: (-action.share, action.what))
    runs = [_run(stage) for stage in (*stale, *ready)]
    return (*(runs if stale else ()), *blocking, *(() if stale else runs), *faster)


def _close(bundle: Bundle, gap: OpenGap) -> Action:
    return Action(
        kind="close_gap",
        what=f"Write an implementation of {gap.operator} for {', '.join(gap.dtypes) or 'no tensors'}",
        why=_worth(gap.calls, gap.share, gap.module, gap.reason),
        command=bundle.command("register", "--with", "my_kernels.py"),
        share=gap.share,
        blocking=True,
    )


def _worth(calls: int, share: float, module: str, reason: str) -> str:
    parts = [counted(calls, "call")]
    if share > 0.0:
        parts.append(f"{share_text(share)} of the roofline time")
    if module:
        parts.append(f"first in {module}")
    return ", ".join(parts) + (f": {reason}" if reason else "")


def _repairs(bundle: Bundle, failures: Iterable[Case]) -> list[Action]:
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in failures:
        groups[(case.op, case.implementation)].append(case)
    return [_repair(bundle, members) for members in groups.values()]


def _repair(bundle: Bundle, members: list[Case]) -> Action:
    worst = members[0]
    shares = {case.shapes: case.share for case in members}
    own = worst.implementation == "native"
    what = (
        f"Repair the device's own {worst.op}"
        if own
        else f"Repair {worst.implementation.rpartition(' ')[2]} for {worst.op}"
    )
    seen = f"; reproducer: {worst.reproducer}" if worst.reproducer else ""
    return Action(
        kind="repair",
        what=f"{what}: it fails {counted(len(members), 'case')}",
        why=f"worst: {worst.shapes} ({worst.regime}) {word(worst.status)}: {worst.reason}{seen}",
        command=bundle.command("check", *(("--force",) if own else ())),  # a repaired device shows in no hash
        share=sum(shares.values()),
        blocking=True,
    )


def _gate(bundle: Bundle, step: Step) -> Action:
    broken = next((gate for gate in step.gates if not gate.passed), None)
    what = (
        f"Meet the gate {broken.rule} of canary stage {step.name}" if broken else f"Get canary stage {step.name} to run"
    )
    reasons = (step.reason or (broken.reason if broken else ""), step.evidence and f"evidence: {step.evidence}")
    return Action(
        kind="meet_gate",
        what=what,
        why="; ".join(reason for reason in reasons if reason),
        command=bundle.command("canary", "--force"),
        share=0.0,
        blocking=True,
    )


def _run(stage: Stage) -> Action:
    again = " again" if stage.status == "stale" else ""
    return Action(
        kind="run_stage",
        what=f"Run {stage.name}{again}",
        why=stage.headline,
        command=stage.command,
        share=0.0,
        blocking=True,
    )


def _fallbacks(bundle: Bundle, chosen: Iterable[Choice]) -> list[Action]:
    return [
        Action(
            kind="replace_fallback",
            what=f"Write a kernel for {one.operator} ({', '.join(one.dtypes)}): every call of it goes to the CPU",
            why=_worth(one.calls, one.share, "", one.reason),
            command=bundle.command("register", "--with", "my_kernels.py"),
            share=one.share,
            blocking=False,
        )
        for one in chosen
        if one.kind == "cpu_fallback"
    ]


def _syncs(bundle: Bundle, weights: Weights) -> list[Action]:
    groups: dict[str, list[str]] = defaultdict(list)
    for entry in bundle.inventory.entries if bundle.inventory else ():
        if entry.verdict == "decomposes_with_sync":
            groups[entry.op].append(entry.id)
    return [_sync(bundle, op, *weights.of(members)) for op, members in groups.items()]


def _sync(bundle: Bundle, op: str, calls: int, share: float) -> Action:
    return Action(
        kind="remove_sync",
        what=f"Write an implementation of {op} that does not wait for the host",
        why=_worth(calls, share, "", ""),
        command=bundle.command("register", "--with", "my_kernels.py"),
        share=share,
        blocking=False,
    )
