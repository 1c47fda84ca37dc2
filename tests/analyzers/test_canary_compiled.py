"""The stage that compiles: backends that compute something else, compile again, or go past the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends import registry

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.models.source import open_model
from day0.playbook import CanaryPlan, ModelPlan, StagePlan
from day0.records import Lock, LockEntry, StageResult
from day0.registry.dispatch import activate

CPU = torch.device("cpu")
PLAN = CanaryPlan(stages={"compiled": StagePlan()}, prompt_tokens=6)

SILU = Implementation(
    operator="aten::silu",
    contract=1,
    id="mine",
    version="1.0",
    kind="kernel",
    run=lambda x: x * torch.sigmoid(x),
    why="x times its sigmoid",
    origin="test",
    source_hash="sha256:1",
)
LOCK = Lock(
    device="cpu",
    namespace="base",
    model="x",
    entries=(
        LockEntry(
            operator=SILU.operator,
            dtypes=("float32",),
            signatures=(),
            identity=SILU.identity,
            kind=SILU.kind,
            source_hash=SILU.source_hash,
            origin=SILU.origin,
            decisions=(),
        ),
    ),
)
SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CanaryContext]:
    plan = ModelPlan(source="hf:llama", dtype="float32", set={**SMALL, "num_key_value_heads": 2})
    with activate(LOCK, CPU, [SILU]) as active, torch.no_grad():
        yield CanaryContext(
            spec=open_model(plan), device=CPU, active=active, evidence=tmp_path, prompt_tokens=6, new_tokens=1
        )


@pytest.fixture
def backend() -> Iterator[Callable[[Any], str]]:
    """Return a function that makes a compiler known to torch for this test."""
    names = []

    def register(compiler: Any) -> str:
        names.append(f"test_{compiler.__name__}")
        registry.register_backend(compiler, name=names[-1])
        return names[-1]

    yield register
    for name in names:
        registry._BACKENDS.pop(name, None)
        registry._COMPILER_FNS.pop(name, None)


def _stage(context: CanaryContext, name: str) -> StageResult:
    context.compile = name
    (found,) = (one for one in run_stages(context, PLAN) if one.name == "compiled")
    return found


def test_a_right_compiler_passes_and_says_what_it_made(context: CanaryContext) -> None:
    found = _stage(context, "eager")
    assert found.status == "pass", found.reason
    assert found.metrics["graphs"] >= 1
    assert found.metrics["compiled_bits_differ"] == found.metrics["recompiled"] == found.metrics["locked_bypassed"] == 0


def test_without_a_backend_the_stage_is_left_out(context: CanaryContext) -> None:
    found = _stage(context, "")
    assert (found.status, found.skip) == ("skipped", "unfit")
    assert "canary.compile" in found.reason


def test_a_compiler_that_computes_something_else_fails(context: CanaryContext, backend: Callable[[Any], str]) -> None:
    def scales(graph: fx.GraphModule, inputs: Any) -> Any:
        return lambda *args: [
            one * 1.001 if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in graph(*args)
        ]

    found = _stage(context, backend(scales))
    assert found.status == "fail"
    assert "compiled_error_ratio" in found.reason


def test_a_compiler_that_goes_past_the_lock_fails_by_name(
    context: CanaryContext, backend: Callable[[Any], str]
) -> None:
    def expands(graph: fx.GraphModule, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if "silu" in str(node.target):
                node.target, node.kwargs = lambda x: x / (1 + torch.exp(-x)), {}
        graph.recompile()
        return graph

    found = _stage(context, backend(expands))
    assert found.status == "fail"
    assert "locked_bypassed" in found.reason
    assert "aten::silu" in found.reason


class _Counts(nn.Module):
    """Takes another way at every call, so that it is compiled at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 0.0 * self.calls


def test_a_model_that_is_compiled_at_every_call_fails(context: CanaryContext) -> None:
    model = context.on_device()
    head: Any = model.get_submodule("lm_head")
    model.lm_head = nn.Sequential(_Counts(), head)
    found = _stage(context, "eager")
    assert found.status == "fail"
    assert "recompiled" in found.reason


def test_a_backend_that_is_unknown_is_refused(context: CanaryContext) -> None:
    from day0.analyzers.canary import stage_83_compiled

    context.compile = "inducter"
    with pytest.raises(Day0Error, match="no backend 'inducter'") as caught:
        stage_83_compiled.run(context)
    assert "inductor" in caught.value.hint
