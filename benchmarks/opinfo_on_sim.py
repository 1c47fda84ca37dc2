"""PyTorch's own operator samples (OpInfo) on the simulated device with nothing missing, compared with the CPU.

Two to four minutes on one core. `figure:` is the share of the operators in traces of real models that pass all the
samples in which the device was asked for them; an operator that no sample reaches does not pass.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import torch
from torch import nn

from day0.analyzers.trace import trace_model
from day0.devices.opinfo import Outcome, judge_operators, operator_samples, run_operator
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.toy.calls import references
from day0.models.toy.config import ToyConfig
from day0.models.toy.model import ToyModel
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, WorkloadPlan

SECONDS = 20.0
"""For one operator."""

MODELS: dict[str, dict[str, object]] = {
    "toy": {},
    "hf:deepseek_v32": {"num_hidden_layers": 4, "index_topk": 16},
    "hf:kimi_linear": {},
    "hf:gpt_oss": {"num_hidden_layers": 2},
    "hf:glm_moe_dsa": {"num_hidden_layers": 5, "index_topk": 16},
    "hf:deepseek_v4": {},
}
"""With fewer layers where the operators are the same."""


def main() -> None:
    """Run all samples, then ask which of the traced operators pass."""
    torch.set_num_threads(1)
    names = {
        source: operators_of(open_model(ModelPlan(source=source, set=changes))) for source, changes in MODELS.items()
    }
    names["toy, references"] = operators_of(toy_of_references(), mode="real")
    open_sim(load_profile("null"))
    outcomes = [outcome for info in operator_samples() for outcome in run_operator(info, seconds=SECONDS)]
    tell_samples(outcomes)
    aten = {name for found in names.values() for name in found if name.startswith("aten::")}
    reasons = judge_operators(aten, outcomes)
    for source, found in names.items():
        good = sum(not reasons[name] for name in found & aten)
        print(f"{source}: {good} of {len(found & aten)} aten operators pass")
    for name in sorted(name for name, reason in reasons.items() if reason):
        print(f"  {name}: {reasons[name]}")
    passing = sum(not reason for reason in reasons.values())
    print(f"{passing} of {len(aten)} traced operators pass all their samples")
    print(f"figure: traced_operators_passing {passing / len(aten):.3f}")


def operators_of(spec: ModelSpec, mode: str = "auto") -> set[str]:
    """Return the names of what a model calls in its own phases."""
    trace = trace_model(spec, plan_phases(spec, WorkloadPlan()), mode=mode)
    return {entry.signature.op for entry in trace.entries}


def toy_of_references() -> ModelSpec:
    """Return the toy with its own operators spelled out in aten's, as a device without kernels for them runs it."""
    spec = open_model(ModelPlan(source="toy"))

    def build(device: str) -> nn.Module:
        model = ToyModel(ToyConfig(), references())
        model.load_state_dict(spec.build(device).state_dict())
        return model.requires_grad_(False)

    return dataclasses.replace(spec, build=build)


def tell_samples(outcomes: list[Outcome]) -> None:
    """Print what became of the samples, and the operators with samples that do not agree."""
    counts = Counter(outcome.status for outcome in outcomes)
    ran = len(outcomes) - counts["not_run"]
    print(f"{len(outcomes)} samples of {len({one.operator for one in outcomes})} operators in all variants")
    print(f"{counts['agrees']} agree, {counts['differs']} differ, {counts['refused']} refused by the device")
    print(f"{counts['not_run']} that the CPU refuses too, or in layouts that no device of ours has")
    for name, many in Counter(one.operator for one in outcomes if one.status in ("differs", "refused")).items():
        print(f"  {name}: {many} do not agree")
    print(f"share of samples that run and agree: {counts['agrees'] / ran:.4f}")


if __name__ == "__main__":
    main()
