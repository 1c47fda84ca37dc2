"""Stage 5: run the canary stages in their order and stop at the first gate that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from day0.analyzers.canary.around import begin
from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.evidence import Found, look_for_cause
from day0.analyzers.canary.gates import as_figure, figure_results, first_failure, judge_gates, warnings
from day0.analyzers.canary.stages import SILENCE, Stage, Step, plan_stages
from day0.errors import USER_ERRORS
from day0.playbook import CanaryPlan
from day0.records import GateResult, Receipt, StageResult
from day0.registry.call_guard import RefusedCall
from day0.registry.receipts import ActiveLock, difference, silent
from day0.registry.results import WrongResult

__all__ = ["Resumed", "run_stages"]

STAGE_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, WrongResult, RefusedCall)
"""What fails a stage: what a model or a kernel raises, and a kernel that breaks its contract."""

Results = tuple[StageResult, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Results of an earlier run of the same canary, and who is told of new ones."""

    done: Mapping[str, StageResult] = field(default_factory=dict)
    """By name; stages that passed and are not run again."""
    keep: Callable[[Results], None] = lambda _: None
    """Called after each stage with all results so far."""


def run_stages(
    context: CanaryContext,
    plan: CanaryPlan,
    *,
    steps: tuple[Step, ...] | None = None,
    resumed: Resumed | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Results:
    """Run the stages; those after a failed one are skipped with that reason.

    The last one that runs the whole model has one gate more, whatever the plan says of it: that every locked
    implementation ran, in this stage or an earlier one.
    """
    steps = plan_stages(plan, context.spec) if steps is None else steps
    resumed = resumed or Resumed()
    results: list[StageResult] = []
    failed = ""
    last = next((step.stage.name for step in reversed(steps) if step.stage.whole and not step.skip), "")
    for step in steps:
        stage = _with_silence(step.stage) if step.stage.name == last else step.stage
        if stage.name in resumed.done:
            results.append(resumed.done[stage.name])
        elif step.skip:
            results.append(_skipped(stage, step.skip, step.reason))
        elif failed:
            results.append(_skipped(stage, "failed", f"stage {failed} failed"))
        else:
            progress(f"{stage.name}: {stage.title}")
            results.append(_run_stage(stage, context, tuple(results)))
            failed = stage.name if results[-1].status == "fail" else ""
            resumed.keep(tuple(results))
    return tuple(results)


def _skipped(stage: Stage, skip: str, reason: str) -> StageResult:
    return StageResult.model_validate(
        {"name": stage.name, "title": stage.title, "status": "skipped", "skip": skip, "reason": reason}
    )


def _with_silence(stage: Stage) -> Stage:
    """Add the gate on locked implementations that never ran, unless the plan has its own."""
    given = any(gate.metric == SILENCE.metric for gate in stage.gates)
    return stage if given else replace(stage, gates=(*stage.gates, SILENCE))


def _run_stage(stage: Stage, context: CanaryContext, earlier: Results) -> StageResult:
    before, around = context.active.receipts(), begin(context.device, context.active)
    try:
        with torch.no_grad():
            measured = stage.run(context)
    except STAGE_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        measured = Measured(metrics={}, failure=f"{type(error).__name__}: {first}")
    if measured.unfit:
        return _skipped(stage, "unfit", measured.unfit)
    receipts = context.active.receipts()
    idle = _idle(context, receipts, earlier) if stage.whole else ()
    figures = {**around.figures(), **measured.metrics, **({SILENCE.metric: float(len(idle))} if stage.whole else {})}
    gates = judge_gates(stage.gates, figures) if not measured.failure else ()
    gates = tuple(_naming(gate, idle, context.active) for gate in gates)
    reason = measured.failure or _first_failure(gates, measured)
    ran = tuple(difference(now, then) for now, then in zip(receipts, before, strict=True))
    found = _cause(stage, context, measured, gates) if reason else Found()
    return StageResult(
        name=stage.name,
        title=stage.title,
        status="fail" if reason else "pass",
        reason=reason,
        gates=gates,
        warnings=warnings(gates),
        metrics={name: value for name in sorted(figures) if (value := as_figure(figures[name]).value) is not None},
        figures=figure_results(figures),
        receipts=tuple(receipt for receipt in ran if receipt.calls),
        operators=measured.operators,
        evidence=measured.written or found.folder,
        diverged=(measured.diverged or found.place or measured.unrepeated) if reason else "",
        next_command=measured.next_command or (found.command if reason else ""),
    )


def _cause(stage: Stage, context: CanaryContext, measured: Measured, gates: tuple[GateResult, ...]) -> Found:
    """Look for the first wrong module, unless the stage knows what is wrong or no value is."""
    broken = [gate.metric for gate in gates if not gate.passed]
    if measured.written or measured.diverged or broken == [SILENCE.metric]:
        return Found(command="day0 check --level ops")
    return look_for_cause(stage.name, stage.look_at, context)


def _idle(context: CanaryContext, receipts: tuple[Receipt, ...], earlier: Results) -> tuple[str, ...]:
    """Name the entries that ran neither in this process nor in a stage that was kept from an earlier one."""
    ran = {(one.identity, one.dtypes) for result in earlier for one in result.receipts if one.calls}
    seen = tuple(
        one.model_copy(update={"calls": 1}) if (one.identity, one.dtypes) in ran and not one.calls else one
        for one in receipts
    )
    return silent(seen, context.active.lock.entries, context.must_run)


def _naming(gate: GateResult, idle: tuple[str, ...], active: ActiveLock) -> GateResult:
    if gate.metric != SILENCE.metric or gate.verdict == "successful":
        return gate
    more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
    names = "; ".join((f"{'; '.join(idle[:3])}{more} never ran on the device", *active.bypassed()))
    return gate.model_copy(update={"reason": f"{gate.reason}: {names}"})


def _first_failure(gates: tuple[GateResult, ...], measured: Measured) -> str:
    place = f" in {measured.evidence}" if measured.evidence else ""
    found = first_failure(gates)
    return f"{found}{place}" if found else ""
