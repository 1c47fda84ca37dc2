"""Stage 5: run the canary stages in their order and stop at the first gate that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import (
    as_figure,
    figure_results,
    first_failure,
    judge_gates,
    warnings,
)
from day0.analyzers.canary.stages import SILENCE, Stage, choose_stages
from day0.devices.open import device_counts
from day0.errors import USER_ERRORS
from day0.playbook import CanaryPlan
from day0.records import GateResult, StageResult
from day0.registry.receipts import ActiveLock, difference, silent
from day0.registry.results import WrongResult

__all__ = ["run_stages"]

STAGE_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, WrongResult)
"""What fails a stage: what a model or a kernel raises, and a kernel that breaks its contract."""


def run_stages(
    context: CanaryContext, plan: CanaryPlan, *, progress: Callable[[str], None] = lambda _: None
) -> tuple[StageResult, ...]:
    """Run the stages; those after a failed one are skipped with that reason.

    The last one that runs the whole model has one gate more, whatever the plan says of it: that every locked
    implementation ran, in this stage or an earlier one.
    """
    results: list[StageResult] = []
    failed = ""
    stages = choose_stages(plan, calls="phases" if context.spec.phases else "tokens")
    last = next((stage.name for stage in reversed(stages) if stage.whole), "")
    for stage in (_with_silence(stage) if stage.name == last else stage for stage in stages):
        if failed:
            reason = f"stage {failed} failed"
            results.append(StageResult(name=stage.name, title=stage.title, status="skipped", reason=reason))
            continue
        progress(f"{stage.name}: {stage.title}")
        result = _run_stage(stage, context)
        results.append(result)
        failed = stage.name if result.status == "fail" else ""
    return tuple(results)


def _with_silence(stage: Stage) -> Stage:
    """Add the gate on locked implementations that never ran, unless the plan has its own."""
    given = any(gate.metric == SILENCE.metric for gate in stage.gates)
    return stage if given else replace(stage, gates=(*stage.gates, SILENCE))


def _run_stage(stage: Stage, context: CanaryContext) -> StageResult:
    before, counted = context.active.receipts(), device_counts(context.device)
    try:
        with torch.no_grad():
            measured = stage.run(context)
    except STAGE_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        measured = Measured(metrics={}, failure=f"{type(error).__name__}: {first}")
    # Simulated time has picoseconds; what is below comes from the subtraction.
    spent = {name: round(value - counted.get(name, 0.0), 12) for name, value in device_counts(context.device).items()}
    receipts = context.active.receipts()
    idle = silent(receipts, context.active.lock.entries, context.must_run) if stage.whole else ()
    figures = {**spent, **measured.metrics, **({SILENCE.metric: float(len(idle))} if stage.whole else {})}
    gates = judge_gates(stage.gates, figures) if not measured.failure else ()
    gates = tuple(_naming(gate, idle, context.active) for gate in gates)
    reason = measured.failure or _first_failure(gates, measured)
    ran = tuple(difference(now, then) for now, then in zip(receipts, before, strict=True))
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
    )


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
