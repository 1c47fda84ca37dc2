"""Planted faults of the simulated device in the whole toy: their modules are named; seeds without a fault are quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from day0.analyzers.modules.check import check_model
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.talk import Talk
from day0.devices.faults.load import planted
from day0.playbook import ModelLevelPlan
from day0.records import Lock, ModelCheck
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate
from tests.flow.conftest import run_day0

pytestmark = pytest.mark.slow

NAMED = {
    "router_weights_biased": "layers.1.mlp.gate (Router) in prefill",
    "router_in_bfloat16": "layers.1.mlp.gate (Router) in prefill",
    "up_before_gate": "layers.1.mlp.experts (Experts) in prefill",
    "routing_weight_early": "layers.1.mlp.experts (Experts) in prefill",
    "gate_up_interleaved": "layers.0.mlp (DenseFeedForward) in prefill",
    "residual_bank_forgotten": "layers.",
    "indexer_relu_outside": "layers.3.self_attn.indexer (Indexer) in prefill",
    "delta_state_transposed": "layers.0.self_attn (KdaAttention) in decode",
    "gate_bound_is_a_clamp": "layers.0.self_attn (KdaAttention) in prefill",
}


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Locks of the toy for the device that lacks nothing, and for the one that lacks much."""
    cwd = tmp_path_factory.mktemp("faults")
    register_operators()
    for device in ("null", "sim"):
        for command in ("trace toy", f"inventory --device {device}", "register"):
            done = run_day0(*command.split(), "--run", device, cwd=cwd)
            assert done.returncode == 0, done.stderr
    return {device: cwd / device for device in ("null", "sim")}


def checked(folder: Path, *faults: str, seed: int = 0) -> ModelCheck:
    run = RunFolder(folder)
    plan = run.read_plan()
    assert plan is not None
    session = Session(plan=plan, folder=run, talk=Talk(as_json=True))
    lock = run.need(Lock).record
    with _one_thread(), planted(*faults), activate(lock, session.device, session.implementations):
        return check_model(session.spec, session.device, ModelLevelPlan(new_tokens=2), seed=seed)


@pytest.mark.parametrize("fault", NAMED)
def test_the_module_of_a_planted_fault_is_named(folders: dict[str, Path], fault: str) -> None:
    found = checked(folders["null"], fault)
    assert found.status == "fail"
    assert found.first_divergent.startswith(NAMED[fault]), found.reason


def test_nan_is_traced_to_the_first_module_that_makes_it(folders: dict[str, Path]) -> None:
    found = checked(folders["null"], "all_nan")
    assert found.non_finite is not None and not found.non_finite.also_on_cpu
    assert found.non_finite.module == "layers.0.self_attn"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("device", ["null", "sim"])
def test_without_a_fault_there_is_no_alarm(folders: dict[str, Path], device: str, seed: int) -> None:
    found = checked(folders[device], seed=seed)
    assert (found.status, found.reason, found.choices_wrong) == ("pass", "", 0)
    assert [one.status for one in found.ways] == [one.status for one in found.logits] == ["pass", "pass"]
