from __future__ import annotations

import pytest
from torch import nn

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.spec import decoder_layers
from day0.models.workload import Phase, plan_phases
from day0.playbook import PhasePlan, WorkloadPlan
from day0.records import Trace, TraceEntry
from tests.analyzers.small import small_spec

PHASES = (
    Phase(name="prefill", batch=2, tokens=5, context=0, reason="test"),
    Phase(name="decode", batch=2, tokens=1, context=5, reason="test"),
)


def _of(trace: Trace, op: str) -> list[TraceEntry]:
    return [entry for entry in trace.entries if entry.signature.op == op]


def test_calls_are_counted_by_phase_with_module_and_line() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    adds = _of(trace, "aten::add_.Tensor")
    assert sum(entry.counts.get("prefill", 0) for entry in adds) == 2
    assert sum(entry.counts.get("decode", 0) for entry in adds) == 2
    first = next(entry for entry in adds if "prefill" in entry.counts)
    assert (first.module, first.module_class, first.modules) == ("layers.0", "Layer", 2)
    assert first.mutates == ("self",)
    assert first.source.startswith("analyzers/small.py:")


def test_flops_and_bytes_of_a_product() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    head = next(e for e in _of(trace, "aten::mm") if e.module == "head" and "prefill" in e.counts)
    assert head.flops == 2 * 10 * 8 * 11
    assert head.bytes == 4 * (10 * 8 + 8 * 11 + 10 * 11)
    assert all(entry.bytes == 0 for entry in _of(trace, "aten::transpose.int"))


def test_strides_are_kept() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    turned = [e.outputs[0] for e in _of(trace, "aten::transpose.int") if "prefill" in e.counts]
    assert any(value.kind == "tensor" and value.stride == (40, 1, 8) for value in turned)


def test_the_same_trace_twice_is_the_same_record() -> None:
    first, second = (trace_model(small_spec(), PHASES, mode="meta") for _ in range(2))
    assert first == second


def test_auto_goes_on_to_real_when_meta_stops_and_says_why() -> None:
    trace = trace_model(small_spec(sync=True), PHASES)
    assert trace.mode == "real"
    assert "auto: meta stopped at py:small, phase prefill" in trace.mode_reason
    assert any(entry.host_sync for entry in _of(trace, "aten::_local_scalar_dense"))
    embedding = _of(trace, "aten::embedding")[0].signature.args[1]
    assert embedding.kind == "tensor"
    assert embedding.range is not None
    assert 0 <= embedding.range[0] <= embedding.range[1] < 11


def test_what_cannot_be_traced_is_named() -> None:
    with pytest.raises(Day0Error) as caught:
        trace_model(small_spec(sync=True), PHASES, mode="meta")
    assert "phase prefill" in caught.value.where
    assert "cannot be traced on meta" in caught.value.what
    assert "analyzers/small.py:" in caught.value.facts[0]


def test_hooks_are_gone_afterwards() -> None:
    made: list[nn.Module] = []
    spec = small_spec()
    build = spec.build

    def remember(device: str) -> nn.Module:
        made.append(build(device))
        return made[-1]

    trace_model(type(spec)(**{**{n: getattr(spec, n) for n in spec.__slots__}, "build": remember}), PHASES, mode="meta")
    assert all(not one._forward_pre_hooks and not one._forward_hooks for one in made[0].modules())


def test_phases_follow_from_the_sparse_top_k() -> None:
    spec = small_spec()
    assert [phase.name for phase in plan_phases(spec, WorkloadPlan())] == ["prefill", "decode"]
    asked = plan_phases(spec, WorkloadPlan(batch=3, phases={"mine": PhasePlan(tokens=7, context=2)}))
    assert [(one.name, one.batch, one.tokens, one.context) for one in asked] == [("mine", 3, 7, 2)]


def test_decoder_layers_are_the_longest_list_but_not_the_experts_inside() -> None:
    assert list(decoder_layers(small_spec().build("cpu"))) == ["layers.0", "layers.1"]
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Module(), nn.Module()])
    model.layers[0].experts = nn.ModuleList(nn.Linear(1, 1) for _ in range(9))
    assert list(decoder_layers(model)) == ["layers.0", "layers.1"]
