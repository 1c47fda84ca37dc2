"""Stage 5: run the canary stages in their order and stop at the first gate that fails."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from day0.analyzers import canary
from day0.analyzers.canary.context import CanaryContext, Measured, judge_gates
from day0.devices.open import device_counts
from day0.errors import USER_ERRORS, Day0Error, near_names
from day0.playbook import CanaryPlan, Gate
from day0.records import GateResult, StageResult

__all__ = ["Stage", "load_stages", "run_stages"]


class StageModule(Protocol):
    """What a file `stage_NN_name.py` has: a title, gates of its own and one function."""

    TITLE: str
    GATES: tuple[Gate, ...]

    def run(self, context: CanaryContext) -> Measured:
        """Measure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage, found by its file name; the number is the order."""

    name: str
    title: str
    gates: tuple[Gate, ...]
    run: Callable[[CanaryContext], Measured]
    calls: str = "tokens"
    """Which models it can call: those that take `tokens`, those with `phases` of their own, or `any`."""


def load_stages() -> tuple[Stage, ...]:
    """Return all stages in their order."""
    names = sorted(one.name for one in pkgutil.iter_modules(canary.__path__) if one.name.startswith("stage_"))
    return tuple(_load(name) for name in names)


def _load(name: str) -> Stage:
    module = importlib.import_module(f"day0.analyzers.canary.{name}")
    calls = getattr(module, "CALLS", "tokens")
    return Stage(name=name.split("_", 2)[2], title=module.TITLE, gates=module.GATES, run=module.run, calls=calls)


def choose_stages(plan: CanaryPlan, *, calls: str = "tokens") -> tuple[Stage, ...]:
    """Return the stages that a plan names, with its gates, in the order in which they widen.

    A plan that names none gets those that can call the model: with `tokens`, or the `phases` that its source brings.
    Raises Day0Error for a stage that does not exist, or cannot call the model.
    """
    stages = load_stages()
    known = tuple(stage.name for stage in stages)
    for name in plan.stages:
        if name not in known:
            hint = near_names(name, known) or f"stages are: {', '.join(known)}"
            raise Day0Error("canary.stages", f"there is no stage '{name}'", hint=hint)
    fitting = {stage.name for stage in stages if stage.calls in (calls, "any")}
    for name in plan.stages:
        if name not in fitting:
            what = f"stage '{name}' calls models with other inputs than this one takes: {_TAKES[calls]}"
            raise Day0Error("canary.stages", what, hint=f"stages for it: {', '.join(sorted(fitting))}")
    chosen = [stage for stage in stages if stage.name in (plan.stages or fitting)]
    return tuple(_with_gates(stage, plan) for stage in chosen)


_TAKES = {"tokens": "token ids and a cache", "phases": "the inputs that its source brings"}


def _with_gates(stage: Stage, plan: CanaryPlan) -> Stage:
    asked = plan.stages.get(stage.name)
    if asked is None or not asked.gates:
        return stage
    return replace(stage, gates=asked.gates)


def run_stages(
    context: CanaryContext, plan: CanaryPlan, *, progress: Callable[[str], None] = lambda _: None
) -> tuple[StageResult, ...]:
    """Run the stages; those after a failed one are skipped with that reason."""
    results: list[StageResult] = []
    failed = ""
    for stage in choose_stages(plan, calls="phases" if context.spec.phases else "tokens"):
        if failed:
            reason = f"stage {failed} failed"
            results.append(StageResult(name=stage.name, title=stage.title, status="skipped", reason=reason))
            continue
        progress(f"{stage.name}: {stage.title}")
        result = _run_stage(stage, context)
        results.append(result)
        failed = stage.name if result.status == "fail" else ""
    return tuple(results)


def _run_stage(stage: Stage, context: CanaryContext) -> StageResult:
    before, counted = dict(context.active.counts), device_counts(context.device)
    try:
        with torch.no_grad():
            measured = stage.run(context)
    except USER_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        measured = Measured(metrics={}, failure=f"{type(error).__name__}: {first}")
    # Simulated time has picoseconds; what is below comes from the subtraction.
    spent = {name: round(value - counted.get(name, 0.0), 12) for name, value in device_counts(context.device).items()}
    gates = judge_gates(stage.gates, measured.metrics) if not measured.failure else ()
    reason = measured.failure or _first_failure(gates, measured)
    receipts = tuple(
        receipt.model_copy(update={"calls": receipt.calls - before.get((entry.operator, str(entry.dtypes)), 0)})
        for receipt, entry in zip(context.active.receipts(), context.active.lock.entries, strict=True)
    )
    return StageResult(
        name=stage.name,
        title=stage.title,
        status="fail" if reason else "pass",
        reason=reason,
        gates=gates,
        metrics=dict(sorted({**spent, **measured.metrics}.items())),
        receipts=tuple(receipt for receipt in receipts if receipt.calls),
    )


def _first_failure(gates: tuple[GateResult, ...], measured: Measured) -> str:
    place = f" in {measured.evidence}" if measured.evidence else ""
    return next((f"{gate.reason}{place}" for gate in gates if not gate.passed), "")
