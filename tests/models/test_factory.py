"""`py:` sources: what a user's factory may return, and what becomes of one that misbehaves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.analyzers.canary.stages import choose_stages
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.workload import plan_phases
from day0.playbook import CanaryPlan, ModelPlan, PhasePlan, StagePlan, WorkloadPlan
from day0.records import Trace

CODE = """
import sys
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Linear(dim, dim)

    def forward(self, latents, *, time):
        return latents * self.scale(time).unsqueeze(1)


def block(dim=8):
    return Block(dim), (torch.randn(2, 5, dim),), {"time": torch.randn(2, dim)}


def record(dim=8):
    from day0.models.own import Inputs, OwnModel

    def call(tokens, device):
        made = {"dtype": torch.bfloat16, "device": device}
        return Inputs(args=(torch.randn(1, tokens, dim, **made),), kwargs={"time": torch.randn(1, dim, **made)})

    phases = {"small": lambda device: call(3, device), "large": lambda device: call(300, device)}
    return OwnModel(module=Block(dim), dtype=torch.bfloat16, name="Denoiser", inputs=phases)


def reads_a_value():
    class Reads(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    return Reads(), (torch.ones(3),)


def needs_values():
    weight = torch.arange(4.0)
    module = nn.Linear(int(weight.sum().item()), 2)
    return module, (torch.ones(1, 6),)


def huge():
    return nn.Linear(1 << 20, 1 << 20, bias=False), lambda device: (torch.empty(1, 1 << 20, device=device),)


def alone():
    return nn.Linear(4, 8)


def without_inputs():
    class Constant(nn.Module):
        def forward(self):
            return torch.ones(2) + 1

    return Constant()


def raises():
    raise ValueError("no weights here")


class OwnError(Exception):
    pass


def raises_own():
    raise OwnError("strange")


def forward_raises_own():
    class Bad(nn.Module):
        def forward(self, x):
            raise OwnError("in forward")

    return Bad(), (torch.ones(1),)


def exits():
    sys.exit(3)


def recurses():
    return recurses()


def number():
    return 42


def prints():
    print("hello")
    return block()


def changes_state():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch.manual_seed(99)
    return block()


def wrong_shape():
    return nn.Linear(4, 8), (torch.ones(3, 5),)


def no_phases():
    from day0.models.own import OwnModel

    return OwnModel(module=nn.Linear(2, 2), inputs={})


def phase_with_space():
    from day0.models.own import OwnModel

    return OwnModel(module=nn.Linear(2, 2), inputs={"a b": (torch.ones(2),)})


def phase_fails():
    from day0.models.own import OwnModel

    return OwnModel(module=nn.Linear(2, 2), inputs={"forward": lambda device: 1 / 0})


def phase_is_a_number():
    from day0.models.own import OwnModel

    return OwnModel(module=nn.Linear(2, 2), inputs={"forward": 3})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def _open(file: Path, name: str, **changes: Any) -> ModelSpec:
    return open_model(ModelPlan(source=f"py:{file}:{name}", **changes))


def _trace(spec: ModelSpec, mode: str = "auto") -> Trace:
    return trace_model(spec, plan_phases(spec, WorkloadPlan()), mode=mode)


def _shapes(trace: Trace, op: str) -> set[tuple[int, ...]]:
    found = [e.signature.args[1] for e in trace.entries if e.signature.op == op]
    return {value.shape for value in found if value.kind == "tensor"}


@pytest.mark.parametrize("mode", ["meta", "real"])
def test_any_forward_is_traced_with_the_inputs_of_the_factory(file: Path, mode: str) -> None:
    trace = _trace(_open(file, "block"), mode)
    assert [phase.name for phase in trace.phases] == ["forward"]
    assert _shapes(trace, "aten::addmm") == {(2, 8)}
    assert any(entry.module == "scale" and entry.module_class == "Linear" for entry in trace.entries)
    assert trace.model.weights == ("as the factory made them" if mode == "real" else "")


def test_set_gives_the_factory_arguments(file: Path) -> None:
    trace = _trace(_open(file, "block", set={"dim": 32}))
    assert _shapes(trace, "aten::addmm") == {(2, 32)}
    assert trace.model.overrides == {"dim": "32"}


@pytest.mark.parametrize("mode", ["meta", "real"])
def test_a_record_names_phases_dtype_and_model(file: Path, mode: str) -> None:
    trace = _trace(_open(file, "record"), mode)
    assert [phase.name for phase in trace.phases] == ["small", "large"]
    assert (trace.model.class_name, trace.model.dtype) == ("Denoiser", "bfloat16")
    products = [entry for entry in trace.entries if entry.signature.op == "aten::mul.Tensor"]
    shapes = {tuple(entry.counts): entry.outputs[0] for entry in products}
    assert {key: value.shape for key, value in shapes.items() if value.kind == "tensor"} == {
        ("small",): (1, 3, 8),
        ("large",): (1, 300, 8),
    }


def test_two_traces_of_random_inputs_are_one_record(file: Path) -> None:
    first, second = (_trace(_open(file, "record"), "real") for _ in range(2))
    assert first == second


def test_a_module_of_terabytes_costs_nothing_on_meta(file: Path) -> None:
    trace = _trace(_open(file, "huge"))
    assert trace.model.parameter_bytes == 4 << 40


def test_a_factory_that_needs_values_is_called_as_it_is(file: Path) -> None:
    trace = _trace(_open(file, "needs_values"))
    assert trace.mode == "meta"
    assert _shapes(trace, "aten::addmm") == {(1, 6)}


def test_a_forward_that_reads_a_value_is_traced_otherwise_than_on_meta(file: Path) -> None:
    trace = _trace(_open(file, "reads_a_value"))
    assert trace.mode in ("fake", "real")
    assert any(entry.signature.op == "aten::_local_scalar_dense" for entry in trace.entries)


def test_a_forward_without_arguments_needs_no_inputs(file: Path) -> None:
    assert _trace(_open(file, "without_inputs")).phases[0].calls > 0


def test_each_build_is_its_own_module_with_equal_weights(file: Path) -> None:
    spec = _open(file, "block")
    one, other = spec.build("cpu"), spec.build("cpu")
    assert one is not other
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "'raises' fails: ValueError: no weights here"),
        ("raises_own", "'raises_own' fails: OwnError: strange"),
        ("exits", "'exits' fails: SystemExit: 3"),
        ("recurses", "RecursionError"),
        ("number", "'number' returned a int, not a module"),
        ("alone", "day0 does not know what to call Linear with"),
        ("no_phases", "returned an OwnModel without phases"),
        ("phase_with_space", "'a b' cannot name a phase"),
        ("nosuch", "has no function 'nosuch'"),
    ],
)
def test_a_factory_that_misbehaves_is_refused_in_words(file: Path, name: str, text: str) -> None:
    with pytest.raises(Day0Error) as caught:
        _open(file, name)
    assert text in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrong_shape", r"3x5|\[3, 5\]"),
        ("forward_raises_own", "OwnError: in forward"),
        ("phase_fails", "making the inputs fails: ZeroDivisionError"),
        ("phase_is_a_number", "its inputs are a int"),
    ],
)
def test_inputs_that_do_not_fit_name_the_phase(file: Path, name: str, text: str) -> None:
    with pytest.raises(Day0Error) as caught:
        _trace(_open(file, name))
    assert "phase forward" in caught.value.where
    assert re.search(text, caught.value.what)


def test_an_argument_that_the_factory_does_not_have_is_refused(file: Path) -> None:
    with pytest.raises(Day0Error, match="'block' cannot be called with width"):
        _open(file, "block", set={"width": 3})


def test_what_the_factory_prints_leaves_stdout_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _trace(_open(file, "prints"), "real")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


def test_defaults_that_the_factory_changes_are_set_back(file: Path) -> None:
    before = (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.get_num_threads())
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    _trace(_open(file, "changes_state"), "meta")
    after = (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled(), torch.get_num_threads())
    assert after == before
    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None
    assert torch.equal(torch.randn(3), expected)


def test_a_module_by_name_is_found_in_the_working_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(file.parent))])
    before = list(sys.path)
    try:
        assert open_model(ModelPlan(source="py:mine:block")).class_name == "Block"
    finally:
        sys.modules.pop("mine", None)
    assert sys.path == before


def test_changed_code_is_another_model(file: Path) -> None:
    first = _open(file, "block").fingerprint
    assert _open(file, "block").fingerprint == first
    file.write_text(CODE + "\n# changed\n")
    assert _open(file, "block").fingerprint != first


@pytest.mark.parametrize("plan", [WorkloadPlan(batch=2), WorkloadPlan(phases={"prefill": PhasePlan(tokens=4)})])
def test_phases_and_batch_of_a_model_with_own_inputs_cannot_be_asked_for(file: Path, plan: WorkloadPlan) -> None:
    with pytest.raises(Day0Error, match="brings its own inputs, for forward"):
        plan_phases(_open(file, "block"), plan)


def test_the_canary_takes_the_stages_that_can_call_the_model() -> None:
    assert [stage.name for stage in choose_stages(CanaryPlan(), calls="phases")] == ["load", "one_op", "forward"]
    assert "forward" not in [stage.name for stage in choose_stages(CanaryPlan())]
    with pytest.raises(Day0Error, match="stage 'generate' calls models with other inputs"):
        choose_stages(CanaryPlan(stages={"generate": StagePlan()}), calls="phases")
