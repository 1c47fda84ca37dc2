"""The canary's stages: files `stage_NN_name.py` of this folder, found by name, and which of them a plan runs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from day0.analyzers import canary
from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import refuse_unknown_metrics
from day0.analyzers.modules.passes import Pass
from day0.errors import Day0Error, near_names
from day0.models.spec import ModelSpec
from day0.playbook import CanaryPlan, Gate

__all__ = ["SILENCE", "Selection", "Stage", "Step", "choose_stages", "load_stages", "plan_stages"]

EVERY_STAGE: dict[str, str] = {
    "sim_fallbacks": "calls that the simulated device sent to the CPU",
    "sim_host_syncs": "times the host waited for the simulated device",
    "sim_kernel_seconds": "simulated seconds in kernels",
    "sim_seconds": "simulated seconds in kernels, launches, waits and transfers",
    "sim_transfer_bytes": "bytes moved to and from the simulated device",
    "memory_peak_bytes": "most bytes in use on the device at once",
    "memory_growth_bytes": "bytes in use on the device after the stage, less those before it",
    "fallback_calls": "calls that the lock sent to the CPU in this stage",
}
"""What is measured around every stage, whatever it does."""

SILENCE = Gate(metric="locked_never_ran", rule="==", limit=0, inconclusive="fail")


class StageModule(Protocol):
    """What a file `stage_NN_name.py` has. It may also have WHOLE, CALLS, unfit and look_at, see `Stage`."""

    TITLE: str
    GATES: tuple[Gate, ...]
    METRICS: Mapping[str, str]

    def run(self, context: CanaryContext) -> Measured:
        """Measure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage, found by its file name; the number is the order."""

    name: str
    title: str
    gates: tuple[Gate, ...]
    metrics: Mapping[str, str]
    """Every name that it may measure, and what that is. A gate on another name is refused before anything runs."""
    run: Callable[[CanaryContext], Measured]
    whole: bool = False
    """Whether it runs the whole model, so that every locked implementation has a chance to run."""
    calls: str = "tokens"
    """Which models it can call: those that take `tokens`, those with `phases` of their own, or `any`."""
    unfit: Callable[[ModelSpec], str] = lambda _: ""
    """Says why a model has nothing for this stage, known before anything runs; an empty text where it has."""
    look_at: Callable[[CanaryContext], Pass] | None = None
    """The pass in which the first wrong module is looked for when the stage fails."""

    @property
    def measurable(self) -> dict[str, str]:
        """Everything that a gate of this stage may name."""
        silence = {SILENCE.metric: "locked implementations that never ran"} if self.whole else {}
        return {**EVERY_STAGE, **silence, **self.metrics}


def load_stages() -> tuple[Stage, ...]:
    """Return all stages in their order."""
    names = sorted(one.name for one in pkgutil.iter_modules(canary.__path__) if one.name.startswith("stage_"))
    return tuple(_load(name) for name in names)


def _load(name: str) -> Stage:
    module = importlib.import_module(f"day0.analyzers.canary.{name}")
    return Stage(
        name=name.split("_", 2)[2],
        title=module.TITLE,
        gates=module.GATES,
        metrics=module.METRICS,
        run=module.run,
        whole=getattr(module, "WHOLE", False),
        calls=getattr(module, "CALLS", "tokens"),
        unfit=getattr(module, "unfit", lambda _: ""),
        look_at=getattr(module, "look_at", None),
    )


def choose_stages(plan: CanaryPlan, *, calls: str = "tokens") -> tuple[Stage, ...]:
    """Return the stages that a plan names, with its gates, in the order in which they widen.

    A plan that names none gets those that can call the model: with `tokens`, or the `phases` that its source brings.
    Raises Day0Error for a stage that does not exist, stands out of order, or cannot call the model, and for a gate on a
    name that its stage does not measure.
    """
    stages = load_stages()
    _refuse_bad_names(tuple(plan.stages), stages)
    fitting = {stage.name for stage in stages if stage.calls in (calls, "any")}
    for name in plan.stages:
        if name not in fitting:
            what = f"stage '{name}' calls models with other inputs than this one takes: {_TAKES[calls]}"
            raise Day0Error("canary.stages", what, hint=f"stages for it: {', '.join(sorted(fitting))}")
    chosen = [stage for stage in stages if stage.name in (plan.stages or fitting)]
    return tuple(_with_gates(stage, plan) for stage in chosen)


def plan_stages(plan: CanaryPlan, spec: ModelSpec, wanted: Selection | None = None) -> tuple[Step, ...]:
    """Return every stage of a plan in order, with the reason for each one that will not run.

    A plan that names no stages gets all of them: those that the model has nothing for are skipped, and said to be.
    Raises what `choose_stages` raises, and Day0Error for a selection that names no stage of the plan.
    """
    calls = "phases" if spec.phases else "tokens"
    chosen = {stage.name: stage for stage in choose_stages(plan, calls=calls)}
    listed = [chosen.get(stage.name, stage) for stage in load_stages() if not plan.stages or stage.name in chosen]
    wanted = wanted or Selection()
    asked = wanted.names(tuple(stage.name for stage in listed))
    return tuple(_step(stage, spec, calls, stage.name in asked) for stage in listed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stage of a plan, and why it is skipped, if it is."""

    stage: Stage
    skip: Literal["", "unfit", "not_asked"] = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which stages of a plan are wanted: those named, or all from one on; all where nothing is said."""

    only: tuple[str, ...] = ()
    first: str = ""

    def names(self, known: tuple[str, ...]) -> frozenset[str]:
        """Return the names of the wanted stages. Raises Day0Error for one that the plan does not have."""
        for flag, name in (*(("--stage", one) for one in self.only), *([("--from", self.first)] if self.first else [])):
            if name not in known:
                hint = near_names(name, known) or f"stages of this run: {', '.join(known)}"
                raise Day0Error(f"{flag} {name}", "the canary of this run has no such stage", hint=hint)
        begin = known.index(self.first) if self.first else 0
        return frozenset(name for name in known[begin:] if not self.only or name in self.only)


def _step(stage: Stage, spec: ModelSpec, calls: str, asked: bool) -> Step:
    if stage.calls not in (calls, "any"):
        return Step(stage=stage, skip="unfit", reason=_LACKS[stage.calls])
    if reason := stage.unfit(spec):
        return Step(stage=stage, skip="unfit", reason=reason)
    return Step(stage=stage) if asked else Step(stage=stage, skip="not_asked", reason="nobody asked for it")


def _refuse_bad_names(names: tuple[str, ...], stages: tuple[Stage, ...]) -> None:
    known = tuple(stage.name for stage in stages)
    for name in names:
        if name not in known:
            hint = near_names(name, known) or f"stages are: {', '.join(known)}"
            raise Day0Error("canary.stages", f"there is no stage '{name}'", hint=hint)
    right = tuple(name for name in known if name in names)
    if names != right:
        first, second = next((one, two) for one, two in zip(names, right, strict=True) if one != two)
        what = f"the stages are out of order: '{first}' stands where '{second}' belongs"
        raise Day0Error("canary.stages", what, hint=f"they widen step by step: {', '.join(right)}")


_TAKES = {"tokens": "token ids and a cache", "phases": "the inputs that its source brings"}
_LACKS = {
    "tokens": "the model takes the inputs that its source brings, not token ids",
    "phases": "its source brings no inputs of its own",
}


def _with_gates(stage: Stage, plan: CanaryPlan) -> Stage:
    """Give a stage the gates of a plan. What none of them says of an undecided figure, the stage's own gate says."""
    asked = plan.stages.get(stage.name)
    gates = asked.gates if asked is not None and asked.gates else stage.gates
    refuse_unknown_metrics(gates, stage.measurable, f"canary.stages.{stage.name}.gates")
    own = {gate.metric: gate.inconclusive for gate in (*stage.gates, SILENCE)}
    settled = (gate.inconclusive or own.get(gate.metric) or plan.inconclusive for gate in gates)
    filled = [gate.model_copy(update={"inconclusive": one}) for gate, one in zip(gates, settled, strict=True)]
    return replace(stage, gates=tuple(filled))
