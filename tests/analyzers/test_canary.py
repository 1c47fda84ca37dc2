"""The canary with planted faults: each is stopped at the earliest stage that can see it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from day0.analyzers.canary.context import CanaryContext, model_error
from day0.analyzers.canary.run import run_stages
from day0.analyzers.canary.stages import Selection, choose_stages, load_stages, plan_stages
from day0.cli.playbook_include import playbook_path
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.playbook import CanaryPlan, Gate, ModelPlan, Playbook, StagePlan
from day0.records import Lock, StageResult
from day0.registry.dispatch import activate
from day0.yamlfile import read_yaml, validate_yaml

CPU = torch.device("cpu")
PLAN = CanaryPlan(prompt_tokens=12, new_tokens=4)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CanaryContext]:
    """The toy on the CPU as its own device: a device without faults."""
    lock = Lock(device="cpu", namespace="base", model="x", entries=())
    with activate(lock, CPU, []) as active:
        spec = open_model(ModelPlan(source="toy", dtype="float32"))
        yield CanaryContext(spec=spec, device=CPU, active=active, evidence=tmp_path, prompt_tokens=12, new_tokens=4)


def _statuses(results: tuple[StageResult, ...]) -> dict[str, str]:
    return {result.name: result.status for result in results}


def test_a_sound_device_passes_every_stage(context: CanaryContext) -> None:
    statuses = _statuses(run_stages(context, PLAN))
    assert {name for name, status in statuses.items() if status == "skipped"} == {
        "one_op",
        "forward",
        "compiled",
        "captured",
    }
    assert set(statuses.values()) == {"pass", "skipped"}


def _scale_first_weight(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).mul_(1.0001)


def _break_layer(index: int) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        def shift(module: nn.Module, args: Any, output: Any) -> Any:
            first, *rest = output if isinstance(output, tuple) else (output,)
            return (first * 1.01, *rest) if rest else first * 1.01

        model.get_submodule(f"layers.{index}").register_forward_hook(shift)

    return plant


def _break_head(model: nn.Module) -> None:
    def swap(module: nn.Module, args: Any, output: Any) -> Any:
        output.logits.copy_(output.logits.flip(-1))
        return output

    model.register_forward_hook(swap)


def _raise_in_layer(model: nn.Module) -> None:
    def fail(module: nn.Module, args: Any) -> None:
        raise NotImplementedError("Could not run 'aten::something'")

    model.get_submodule("layers.0").register_forward_pre_hook(fail)


@pytest.mark.parametrize(
    ("plant", "stage", "first"),
    [
        (_scale_first_weight, "load", "embed_tokens.weight"),
        (_break_layer(0), "one_layer", "layers.0 (KdaLayer) in prefill"),
        (_break_layer(2), "some_layers", "layers.2 (KdaLayer) in prefill"),
        (_raise_in_layer, "one_layer", "(model) (ToyModel)"),
        (_break_head, "all_layers", "(model) (ToyModel) in prefill"),
    ],
)
def test_a_fault_stops_at_the_earliest_stage_and_its_module_is_named(
    context: CanaryContext, plant: Callable[[nn.Module], None], stage: str, first: str
) -> None:
    plant(context.on_device())
    found = [result for result in run_stages(context, PLAN) if result.skip != "unfit"]
    order = [result.name for result in found]
    failed = order.index(stage)
    assert [result.status for result in found[:failed]] == ["pass"] * failed
    assert found[failed].status == "fail"
    assert found[failed].reason
    assert found[failed].diverged == first
    assert found[failed].next_command.startswith("day0 check")
    if found[failed].evidence:
        folder = context.evidence.parent / found[failed].evidence
        said = json.loads((folder / "evidence.json").read_text())
        assert said.get("first_divergent", said.get("stopped_in")) == first
        if (folder / "tensors.safetensors").exists():
            with safe_open(folder / "tensors.safetensors", framework="pt") as file:
                assert {name.split(".")[0] for name in file.keys()} == {"golden", "cpu", "device"}  # noqa: SIM118
    for result in found[failed + 1 :]:
        assert (result.status, result.skip, result.reason) == ("skipped", "failed", f"stage {stage} failed")


def test_gates_of_the_plan_take_the_place_of_the_stages_own() -> None:
    gate = Gate(metric="tensors", rule=">=", limit=1)
    plan = CanaryPlan(stages={"load": StagePlan(gates=(gate,))})
    (stage,) = choose_stages(plan)
    assert (stage.name, stage.gates) == ("load", (gate,))
    own = Gate(metric="changed_tensors", rule="<=", limit=1)
    (stage,) = choose_stages(CanaryPlan(stages={"load": StagePlan(gates=(own, gate))}, inconclusive="pass"))
    assert [one.inconclusive for one in stage.gates] == ["fail", "pass"]
    wrong = Gate(metric="tensor", rule=">=", limit=1)
    with pytest.raises(Day0Error, match="a gate names 'tensor', which is not measured there"):
        choose_stages(CanaryPlan(stages={"load": StagePlan(gates=(wrong,))}))
    with pytest.raises(Day0Error, match="there is no stage 'lod'"):
        choose_stages(CanaryPlan(stages={"lod": StagePlan()}))


def test_the_stages_have_titles_and_gates_in_their_order() -> None:
    stages = load_stages()
    names = [stage.name for stage in stages]
    widening = ["load", "one_op", "one_layer", "some_layers", "all_layers", "small_batch", "past_topk", "vision"]
    assert [name for name in names if name != "soak"] == [*widening, "forward", "generate", "compiled", "captured"]
    assert all(stage.title and stage.gates for stage in stages)
    for stage in stages:
        assert {gate.metric for gate in stage.gates} <= stage.measurable.keys(), stage.name


def test_a_playbook_whose_stages_are_out_of_order_is_refused() -> None:
    with pytest.raises(Day0Error, match="the stages are out of order: 'generate' stands where 'load' belongs"):
        choose_stages(CanaryPlan(stages={"generate": StagePlan(), "load": StagePlan()}))


def test_a_selection_runs_what_it_names_and_says_what_it_leaves_out(context: CanaryContext) -> None:
    only = plan_stages(PLAN, context.spec, Selection(only=("load", "some_layers")))
    found = {result.name: result for result in run_stages(context, PLAN, steps=only)}
    assert {name for name, one in found.items() if one.status == "pass"} == {"load", "some_layers"}
    assert found["generate"].skip == "not_asked"
    later = plan_stages(PLAN, context.spec, Selection(first="vision"))
    assert [step.stage.name for step in later if not step.skip][:2] == ["vision", "generate"]
    with pytest.raises(Day0Error, match="the canary of this run has no such stage"):
        plan_stages(PLAN, context.spec, Selection(only=("lod",)))


def test_what_a_model_has_nothing_for_is_skipped_with_its_reason() -> None:
    spec = open_model(ModelPlan(source="toy:deepseek-v3.2", dtype="float32"))
    dense = dataclasses.replace(spec, sparse_top_k=None)
    skipped = {step.stage.name: step.reason for step in plan_stages(CanaryPlan(), dense) if step.skip}
    assert skipped["past_topk"] == "it has no sparse attention"
    assert skipped["forward"] == "its source brings no inputs of its own"
    large = dataclasses.replace(spec, sparse_top_k=2048)
    skipped = {step.stage.name: step.reason for step in plan_stages(CanaryPlan(), large) if step.skip}
    assert "leaves no room" in skipped["past_topk"]


def test_a_golden_that_the_reference_does_not_resemble_judges_nothing() -> None:
    x = torch.ones(8)
    with pytest.raises(RuntimeError, match="the golden cannot judge"):
        model_error(x, x, -x)
    with pytest.raises(RuntimeError, match="the golden cannot judge"):
        model_error(x, x * float("nan"), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_weights_are_the_same_in_golden_reference_and_device(tmp_path: Path, dtype: str) -> None:
    """Once the golden was built inside the float64 mode: it drew other weights, and every gate passed."""
    plan = validate_yaml(Playbook, read_yaml(playbook_path(Path("deepseek-v32-tiny-on-sim"))))
    spec = open_model(plan.model.model_copy(update={"dtype": dtype}))
    lock = Lock(device="cpu", namespace="base", model="x", entries=())
    with activate(lock, CPU, []) as active:
        context = CanaryContext(spec=spec, device=CPU, active=active, evidence=tmp_path, prompt_tokens=20, new_tokens=2)
        few = CanaryPlan(stages={name: StagePlan() for name in ("load", "all_layers")}, prompt_tokens=20, new_tokens=2)
        stages = {stage.name: stage for stage in run_stages(context, few)}
    limit = 1e-5 if dtype == "float32" else 0.4
    assert stages["all_layers"].metrics["prefill_yardstick"] < limit
    assert (
        all(
            torch.equal(a.double(), b)
            for a, b in zip(context.reference().parameters(), context.golden().parameters(), strict=True)
        )
        or dtype == "bfloat16"
    )


def test_model_error_has_a_floor_so_that_a_zero_yardstick_divides() -> None:
    x = torch.ones(8)
    assert model_error(x, x, x)["error_ratio"] == 0.0
    assert model_error(x * (1 + 1e-5), x, x)["error_ratio"] > 3.0
    assert model_error(x * (1 + 1e-7), x, x)["error_ratio"] < 3.0


def test_half_types_are_judged_by_their_own_rounding_where_choices_were_followed() -> None:
    golden = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = golden.to(torch.bfloat16)
    rounded, off = (golden * 1.001).to(torch.bfloat16), (golden * 1.05).to(torch.bfloat16)
    assert model_error(rounded, same, golden)["error_ratio"] < 1.0
    assert model_error(off, same, golden)["error_ratio"] > 3.0, "five per cent passed once, in half types only"
    assert model_error(off, same, golden, followed=False)["error_ratio"] < 1.0
    assert model_error(golden * 1.5, same, golden, followed=False)["error_ratio"] > 3.0
