from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from torch import nn

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.hf import open_hf
from day0.models.spec import ModelSpec, decoder_layers
from day0.models.workload import Phase, plan_phases
from day0.playbook import ModelPlan, PhasePlan, WorkloadPlan
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


def test_auto_goes_on_when_meta_stops_and_says_why() -> None:
    trace = trace_model(small_spec(sync=True), PHASES)
    assert (trace.mode, trace.device) == ("fake", "meta")
    assert "auto: meta stopped at py:small, phase prefill" in trace.mode_reason
    assert trace.mode_reason.endswith("; fake works")
    assert sum(trace.assumed.values()) == 2


def test_real_values_give_ranges_and_syncs() -> None:
    trace = trace_model(small_spec(sync=True), PHASES, mode="real")
    assert trace.mode == "real"
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


def _hf(name: str, **changes: Any) -> ModelSpec:
    pytest.importorskip("transformers")
    return open_hf(ModelPlan(source=f"hf:{name}", shrink=True, set=changes))


def _moves_a_number(entry: TraceEntry) -> bool:
    first = entry.signature.args[0] if entry.signature.args else None
    return entry.signature.op == "aten::_to_copy" and first is not None and first.kind == "tensor" and not first.shape


def _default_trace(spec: ModelSpec, mode: str = "auto") -> Trace:
    return trace_model(spec, plan_phases(spec, WorkloadPlan()), mode=mode)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", pytest.param("deepseek_v32", marks=pytest.mark.slow)])
def test_fake_sees_what_meta_sees(name: str) -> None:
    meta, fake = (
        # A copy of a number from the CPU to meta: without memory all are on meta from the beginning.
        {entry.id: entry.counts for entry in _default_trace(_hf(name), mode).entries if not _moves_a_number(entry)}
        for mode in ("meta", "fake")
    )
    assert fake == meta


LONG = ("longcat_flash", "gemma4", "blt")
"""Ten seconds each: the three others ask for values as well."""


@pytest.mark.parametrize(
    "name", ["bart", "jetmoe", "xlm", *(pytest.param(one, marks=pytest.mark.slow) for one in LONG)]
)
def test_models_that_ask_for_values_are_traced_without_them(name: str) -> None:
    trace = _default_trace(_hf(name))
    assert trace.mode == "fake"
    assert next(phase for phase in trace.phases if phase.name == "prefill").calls > 50


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bert", "--set is_decoder=true"),
        ("openai-gpt", "keeps nothing between calls"),
        ("bamba", "refuses this config"),
    ],
)
def test_a_phase_that_a_model_does_not_have_says_why(name: str, why: str) -> None:
    trace = _default_trace(_hf(name))
    prefill, decode = trace.phases
    assert prefill.calls > 0
    assert decode.calls == 0
    assert why in decode.reason
    assert all("decode" not in entry.counts for entry in trace.entries)


def test_the_hint_for_a_model_without_decode_works() -> None:
    trace = _default_trace(_hf("bert", is_decoder=True))
    assert all(phase.calls for phase in trace.phases)


def test_images_are_a_phase_in_a_mode_of_its_own() -> None:
    trace = _default_trace(_hf("kimi_k25"))
    assert (trace.mode, [(phase.name, phase.mode) for phase in trace.phases]) == (
        "meta",
        [("prefill", ""), ("decode", ""), ("vision", "fake")],
    )
    assert "64 visual tokens" in trace.phases[-1].reason
    assert any("vision" in entry.module and "vision" in entry.counts for entry in trace.entries)
    assert sum(entry.counts.get("vision", 0) for entry in trace.entries) == trace.phases[-1].calls
    assert len({entry.id for entry in trace.entries}) == len(trace.entries)


def test_images_that_cannot_be_traced_do_not_take_the_text_with_them() -> None:
    spec = _hf("kimi_k25")

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such image")

    trace = _default_trace(dataclasses.replace(spec, image_inputs=broken))
    assert [phase.calls > 0 for phase in trace.phases] == [True, True, False]
    assert "no such image" in trace.phases[-1].reason
    assert "at" in trace.phases[-1].reason


def test_the_last_resort_is_a_small_model() -> None:
    spec = small_spec(sync=True)

    def large(device: str) -> nn.Module:
        if device != "meta":
            raise Day0Error("py:small", "too large")
        return nn.Linear(1 << 20, 1 << 20, device="meta")

    full = dataclasses.replace(
        spec,
        build=large,
        shrink=lambda: dataclasses.replace(spec, shrunk={"width": "1048576 -> 8"}),
    )
    trace = trace_model(full, PHASES)
    assert (trace.mode, trace.shrunk) == ("real", {"width": "1048576 -> 8"})
    assert "too much to try unasked" in trace.mode_reason
    assert trace.mode_reason.endswith("a shrunken model works")


def test_a_mistake_of_the_model_is_not_tried_for_real() -> None:
    spec, built = open_hf(ModelPlan(source="hf:xlnet", set={"n_layer": 1})), []
    build = spec.build

    def remember(device: str) -> nn.Module:
        built.append(device)
        return build(device)

    with pytest.raises(Day0Error) as caught:
        _default_trace(dataclasses.replace(spec, build=remember))
    assert "expected scalar type" in caught.value.what
    assert "modeling_xlnet.py:" in caught.value.facts[0]
    assert caught.value.hint.endswith("--dtype float32")
    assert built.count("cpu") == 1  # the run without values


def test_an_empty_config_field_is_named_where_the_model_stops() -> None:
    spec = open_hf(ModelPlan(source="hf:deepseek_v2", set={"num_hidden_layers": 1}))
    with pytest.raises(Day0Error) as caught:
        _default_trace(spec)
    assert "model.layers.0.mlp.gate" in caught.value.where
    assert "--set num_experts_per_tok=" in caught.value.hint
