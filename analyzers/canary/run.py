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
from day0.registry.receipts import ActiveLock, difference, silent
from day0.registry.results import WrongResult

__all__ = ["Stage", "load_stages", "run_stages"]

STAGE_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, WrongResult)
"""What fails a stage: what a model or a kernel raises, and a kernel that breaks its contract."""


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
    whole: bool = False
    """Whether it runs the whole model, so that every locked implementation has a chance to run."""
    calls: str = "tokens"
    """Which models it can call: those that take `tokens`, those with `phases` of their own, or `any`."""


def load_stages() -> tuple[Stage, ...]:
    """Return all stages in their order."""
    names = sorted(one.name for one in pkgutil.iter_modules(canary.__path__) if one.name.startswith("stage_"))
    return tuple(_load(name) for name in names)


def _load(name: str) -> Stage:
    module = importlib.import_module(f"day0.analyzers.canary.{name}")
    calls = getattr(module, "CALLS", "tokens")
    return Stage(
        name=name.split("_", 2)[2],
        title=module.TITLE,
        gates=module.GATES,
        run=module.run,
        whole=getattr(module, "WHOLE", False),
        calls=calls,
    )


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


_SILENCE = Gate(metric="locked_never_ran", rule="==", limit=0)


def _with_silence(stage: Stage) -> Stage:
    """Add the gate on locked implementations that never ran, unless the plan has its own."""
    given = any(gate.metric == _SILENCE.metric for gate in stage.gates)
    return stage if given else replace(stage, gates=(*stage.gates, _SILENCE))


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
    metrics = {**measured.metrics, **({"locked_never_ran": float(len(idle))} if stage.whole else {})}
    gates = judge_gates(stage.gates, metrics) if not measured.failure else ()
    gates = tuple(_naming(gate, idle, context.active) for gate in gates)
    reason = measured.failure or _first_failure(gates, measured)
    ran = tuple(difference(now, then) for now, then in zip(receipts, before, strict=True))
    return StageResult(
        name=stage.name,
        title=stage.title,
        status="fail" if reason else "pass",
        reason=reason,
        gates=gates,
        metrics=dict(sorted({**spent, **metrics}.items())),
        receipts=tuple(receipt for receipt in ran if receipt.calls),
    )


def _naming(gate: GateResult, idle: tuple[str, ...], active: ActiveLock) -> GateResult:
    if gate.metric != _SILENCE.metric or gate.passed:
        return gate
    more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
    names = "; ".join((f"{'; '.join(idle[:3])}{more} never ran on the device", *active.bypassed()))
    return gate.model_copy(update={"reason": f"{gate.reason}: {names}"})


def _first_failure(gates: tuple[GateResult, ...], measured: Measured) -> str:
    place = f" in {measured.evidence}" if measured.evidence else ""
    return next((f"{gate.reason}{place}" for gate in gates if not gate.passed), "")
