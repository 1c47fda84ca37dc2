"""The calls that a model's own source brings, against the golden."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from day0.analyzers.canary.context import CanaryContext, Measured, model_error
from day0.analyzers.golden import Float64Mode
from day0.analyzers.modules.passes import Pass, own_calls
from day0.models.spec import OwnPhase
from day0.playbook import Gate
from day0.registry.dispatch import suspended

TITLE = "every phase of the source, outputs compared"
CALLS = "phases"
WHOLE = True
GATES = (
    Gate(metric="worst_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="unequal_outputs", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="outputs", rule=">=", limit=1, inconclusive="fail"),
)
METRICS = {
    "phases": "phases of the source",
    "outputs": "tensors that they return",
    "unequal_outputs": "of another shape or dtype, or integers with other values",
    "worst_error": "relative L2 error against float64",
    "worst_error_ratio": "the error, relative to that of the dtype itself",
}


def run(context: CanaryContext) -> Measured:
    """Run each phase on the device, on the CPU and in float64.

    Metrics: phases, outputs, worst_error, worst_error_ratio of the floating outputs; unequal_outputs, which are of
    another shape or dtype, or integers with other values. The failure names the worst output.
    """
    worst, place = {"worst_error": 0.0, "worst_error_ratio": 0.0}, ""
    outputs = unequal = 0
    for phase in context.spec.phases:
        for name, got, reference, golden in _outputs(context, phase):
            outputs += 1
            if got.shape != reference.shape or got.dtype != reference.dtype or not _equal(got, reference):
                unequal, place = unequal + 1, name
            elif got.is_floating_point() and got.numel():
                found = model_error(got, reference, golden, followed=False)
                if not found["error_ratio"] <= worst["worst_error_ratio"]:
                    worst = {"worst_error": found["error"], "worst_error_ratio": found["error_ratio"]}
                    place = place if unequal else name
    metrics = {"phases": len(context.spec.phases), "outputs": outputs, "unequal_outputs": unequal, **worst}
    return Measured(metrics={name: float(value) for name, value in metrics.items()}, evidence=place)


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return own_calls(context.spec.phases)


def _outputs(context: CanaryContext, phase: OwnPhase) -> list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    with suspended():
        reference = _called(context.reference(), phase, "cpu")
    model = context.golden()  # built outside of the mode
    with suspended():
        call = phase.prepare(model, "cpu")
        with Float64Mode():
            golden = _tensors(call())
    got = _called(context.on_device(), phase, str(context.device))
    return [
        (f"phase {phase.name}, output {number}", *three)
        for number, three in enumerate(zip(got, reference, golden, strict=True))
    ]


def _called(model: nn.Module, phase: OwnPhase, device: str) -> list[torch.Tensor]:
    return _tensors(phase.prepare(model, device)())


def _tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result on the CPU, in order; results of transformers are known to the tree functions."""
    return [leaf.detach().cpu() for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def _equal(got: torch.Tensor, reference: torch.Tensor) -> bool:
    return got.is_floating_point() or got.is_complex() or bool(torch.equal(got, reference))
