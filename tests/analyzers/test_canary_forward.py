"""The canary of a model with inputs of its own: its phases on the device against the golden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.models.source import open_model
from day0.playbook import CanaryPlan, ModelPlan
from day0.records import Lock
from day0.registry.dispatch import activate

CPU = torch.device("cpu")
CODE = """
import torch
from torch import nn

from day0.models.own import OwnModel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x, *, scale):
        y = self.linear(x) * scale
        return {"y": y, "best": y.argmax(dim=-1), "same": x.to(torch.int32)}


def make():
    inputs = {
        "short": lambda device: {"x": torch.randn(2, 16, device=device), "scale": 2.0},
        "long": lambda device: {"x": torch.randn(64, 16, device=device), "scale": 0.5},
    }
    return OwnModel(module=Block(), inputs=inputs)
"""


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CanaryContext]:
    """The model on the CPU as its own device: a device without faults."""
    (tmp_path / "mine.py").write_text(CODE)
    spec = open_model(ModelPlan(source=f"py:{tmp_path / 'mine.py'}:make"))
    with activate(Lock(device="cpu", namespace="base", model="x", entries=()), CPU, []) as active:
        yield CanaryContext(spec=spec, device=CPU, active=active, evidence=tmp_path, prompt_tokens=4, new_tokens=2)


def test_a_sound_device_passes_both_stages(context: CanaryContext) -> None:
    found = {result.name: result for result in run_stages(context, CanaryPlan())}
    forward = found.pop("forward")
    assert (found.pop("load").status, forward.status) == ("pass", "pass")
    assert {result.skip for result in found.values()} == {"unfit"}
    assert found["generate"].reason == "the model takes the inputs that its source brings, not token ids"
    assert forward.metrics["phases"] == 2
    assert forward.metrics["outputs"] == 6


def _scaled(output: Any) -> Any:
    return {**output, "y": output["y"] * 1.01}


def _other_dtype(output: Any) -> Any:
    return {**output, "y": output["y"].double()}


def _other_integer(output: Any) -> Any:
    return {**output, "same": output["same"] + 1}


def _not_a_number(output: Any) -> Any:
    return {**output, "y": output["y"] * float("nan")}


@pytest.mark.parametrize(
    ("fault", "metric"),
    [
        (_scaled, "worst_error_ratio"),
        (_not_a_number, "worst_error_ratio"),
        (_other_dtype, "unequal_outputs"),
        (_other_integer, "unequal_outputs"),
    ],
)
def test_a_wrong_output_is_stopped_by_its_gate(
    context: CanaryContext, fault: Callable[[Any], Any], metric: str
) -> None:
    context.reference()
    context.golden()

    def plant(module: nn.Module, args: Any, output: Any) -> Any:
        return fault(output)

    context.on_device().register_forward_hook(plant)
    (forward,) = (result for result in run_stages(context, CanaryPlan()) if result.name == "forward")
    assert forward.status == "fail"
    assert forward.reason.startswith(metric)
    assert "phase " in forward.reason
