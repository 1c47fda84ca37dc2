"""The canary and receipts: what was locked has to run, whatever the stages, and where it ran is said."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.models.source import open_model
from day0.playbook import CanaryPlan, Gate, ModelPlan, StagePlan
from day0.records import StageResult
from day0.registry.dispatch import activate
from day0.registry.receipts import Key, entries_to_run
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
SILU = ("aten::silu", ("float32",))
SILU_KEY: Key = ("aten::silu", "('float32',)")


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@contextmanager
def _context(
    folder: Path, *extra: str, run: Callable[..., Any] = _silu, must_run: frozenset[Key] | None = None
) -> Iterator[CanaryContext]:
    """The toy on the CPU with a lock of silu, and of `extra` operators that the toy does not call."""
    ones = [implementation("aten::silu", run), *(implementation(name, torch.clone) for name in extra)]
    with activate(lock_of(*((one, ("float32",)) for one in ones)), CPU, ones) as active:
        spec = open_model(ModelPlan(source="toy", dtype="float32"))
        yield CanaryContext(
            spec=spec,
            device=CPU,
            active=active,
            evidence=folder,
            prompt_tokens=6,
            new_tokens=2,
            must_run=must_run,
        )


def _plan(*stages: str) -> CanaryPlan:
    return CanaryPlan(prompt_tokens=6, new_tokens=2, stages={name: StagePlan() for name in stages})


def _gated(results: tuple[StageResult, ...]) -> dict[str, bool]:
    return {
        result.name: gate.passed for result in results for gate in result.gates if gate.metric == "locked_never_ran"
    }


def test_the_last_stage_that_runs_the_whole_model_has_the_gate(tmp_path: Path) -> None:
    with _context(tmp_path) as context:
        results = run_stages(context, _plan("all_layers", "generate"))
        receipt = results[0].receipts[0]
        model = context.models["device"]
        assert any(module._forward_hooks for module in model.modules())
    assert [result.status for result in results] == ["pass", "pass"], results
    assert _gated(results) == {"generate": True}
    assert sum(receipt.where.values()) == receipt.calls > 0
    assert set(receipt.where) == {f"layers.{number}.self_attn" for number in (0, 1, 2)}, receipt.where
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_is_locked_and_never_runs_fails_it_by_name(tmp_path: Path) -> None:
    with _context(tmp_path, "aten::erfinv") as context:
        (result,) = run_stages(context, _plan("all_layers"))
    assert result.status == "fail" and _gated((result,)) == {"all_layers": False}
    assert result.metrics["locked_never_ran"] == 1
    assert result.reason == (
        "locked_never_ran is 1, the gate says == 0: aten::erfinv@1 base:test==1.0 for float32 never ran on the device"
    )


def test_a_kernel_that_somebody_registers_over_the_router_makes_it_inert_and_is_named(tmp_path: Path) -> None:
    with _context(tmp_path) as context, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says once in a process that a kernel was overridden
        other = torch.library.Library("aten", "IMPL")
        other.impl("silu", _silu, "CPU", allow_override=True)
        try:
            (result,) = run_stages(context, _plan("all_layers"))
        finally:
            other._destroy()
    assert result.status == "fail"
    assert "aten::silu@1 base:test==1.0 for float32 never ran on the device" in result.reason
    assert f"aten::silu: a kernel from {__file__}:" in result.reason


def test_a_stage_without_the_whole_model_asks_for_nothing(tmp_path: Path) -> None:
    with _context(tmp_path, "aten::erfinv") as context:
        results = run_stages(context, _plan("load", "one_layer"))
    assert [result.status for result in results] == ["pass", "pass"]
    assert _gated(results) == {}


def test_what_the_canary_cannot_reach_does_not_fail_it(tmp_path: Path) -> None:
    with _context(tmp_path, "aten::erfinv", must_run=frozenset({SILU_KEY})) as context:
        (result,) = run_stages(context, _plan("all_layers"))
    assert result.status == "pass", result.reason
    assert result.metrics["locked_never_ran"] == 0


def test_a_plan_may_set_its_own_limit(tmp_path: Path) -> None:
    gates = (Gate(metric="locked_never_ran", rule="<=", limit=1),)
    plan = CanaryPlan(prompt_tokens=6, new_tokens=2, stages={"all_layers": StagePlan(gates=gates)})
    with _context(tmp_path, "aten::erfinv") as context:
        (result,) = run_stages(context, plan)
    assert result.status == "pass" and len(result.gates) == 1


def test_a_kernel_that_breaks_its_contract_fails_the_stage_and_is_named(tmp_path: Path) -> None:
    with _context(tmp_path, run=lambda x: _silu(x).double()) as context:
        (result,) = run_stages(context, _plan("all_layers"))
    assert result.status == "fail"
    assert result.reason.startswith("WrongResult: aten::silu: aten::silu@1 base:test==1.0: it returned float64[")


def test_entries_that_occur_only_with_images_are_out_of_reach() -> None:
    one, two, three = (implementation(f"aten::{name}", torch.clone) for name in ("silu", "erfinv", "tanh"))
    lock = lock_of((one, ("float32",)), (two, ("float32",)), (three, ("float32",)))
    signatures = {"aten::silu": ("a", "b"), "aten::erfinv": ("b",), "aten::tanh": ("unknown",)}
    entries = tuple(entry.model_copy(update={"signatures": signatures[entry.operator]}) for entry in lock.entries)
    trace: Any = SimpleNamespace(
        phases=[SimpleNamespace(name="prefill", images=0), SimpleNamespace(name="vision", images=1)],
        entries=[
            SimpleNamespace(id="a", counts={"prefill": 3, "vision": 3}),
            SimpleNamespace(id="b", counts={"prefill": 0, "vision": 2}),
        ],
    )
    found = {operator for operator, _ in entries_to_run(lock.model_copy(update={"entries": entries}), trace)}
    assert found == {"aten::silu", "aten::tanh"}
