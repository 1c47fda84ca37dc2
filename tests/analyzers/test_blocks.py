"""Every block recognises its own sample and not its near miss; known models are recognised by their classes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.blocks import load
from day0.analyzers.blocks._block import Block, Call, parse_path
from day0.analyzers.blocks._graph import build_graph
from day0.analyzers.grouping import Group, bytes_saved, find_groups
from day0.analyzers.recorder import Recorder, watch_modules
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, PhasePlan, WorkloadPlan
from day0.records import ModelInfo, PhaseInfo, Trace, TraceEntry
from day0.reference_ops.load import load_operators

BLOCKS = load.load_blocks()
INFO = ModelInfo(source="test", dtype="float32", class_name="", parameters=0, parameter_bytes=0, fingerprint="")


def _trace(model: nn.Module, tokens: int = 1) -> Trace:
    recorder = Recorder()
    recorder.phase = "only"
    with torch.no_grad(), watch_modules(model, recorder), recorder:
        model()
    phase = PhaseInfo(name="only", batch=1, tokens=tokens, context=0, calls=recorder.calls)
    return Trace(model=INFO, mode="real", mode_reason="", device="cpu", phases=(phase,), entries=recorder.entries())


def _tokens(block: Block) -> int:
    return 1 if block.phases == "one" else 3


def _found(name: str, call: Call) -> Group | None:
    _, groups = find_groups(_trace(call, _tokens(BLOCKS[name])))
    return next((group for group in groups if group.name == name), None)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_knows_its_sample(name: str) -> None:
    block = BLOCKS[name]
    group = _found(name, block.sample())
    assert group is not None
    assert group.how == ("pattern" if block.paths else "module")
    assert group.sites == 1 and sum(group.calls.values()) == 1
    assert group.reason


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_does_not_know_its_near_miss(name: str) -> None:
    assert _found(name, BLOCKS[name].near_miss()) is None


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_stands_on_operators_that_exist(name: str) -> None:
    block = BLOCKS[name]
    ours = [operator for operator in block.operators if operator.startswith("day0::")]
    assert set(ours) <= set(load_operators())
    assert block.title and block.why
    assert block.classes or block.paths
    assert not set(block.carves) - set(BLOCKS)
    for path in block.paths:
        assert any(step.anchor for step in parse_path(path)[0]), f"{path} counts nothing: mark a step with !"


@pytest.mark.parametrize("name", sorted(name for name, block in BLOCKS.items() if block.paths and block.classes))
def test_a_class_of_that_name_without_the_operators_is_not_taken(name: str) -> None:
    block = BLOCKS[name]
    classes = block.classes[0].replace("*", "My").split("/")
    empty = Call(lambda x: x + x, torch.ones(3)).named(*classes)
    assert _found(name, empty) is None or not block.confirm


def test_a_block_of_a_known_class_is_recognised_by_it() -> None:
    group = _found("rms_norm", BLOCKS["rms_norm"].sample().named("MyRMSNorm"))
    assert group is not None and group.how == "module"
    assert group.reason == "module class MyRMSNorm"


def test_a_file_without_a_block_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pkgutil, "iter_modules", lambda _: [SimpleNamespace(name="stray")])
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace())
    load.load_blocks.cache_clear()
    with pytest.raises(Day0Error, match=r"stray\.py.*does not define BLOCK"):
        load.load_blocks()
    monkeypatch.undo()
    load.load_blocks.cache_clear()


# ------------------------------------------------------------------------------------ who feeds whom


def _edges(function: Callable[..., Any], *inputs: torch.Tensor) -> set[tuple[str, str]]:
    graph = build_graph(_trace(Call(function, *inputs)))
    return {
        (graph.nodes[maker].name, graph.nodes[taker].name) for maker, takers in graph.feeds.items() for taker in takers
    }


def test_an_edge_goes_through_views_and_not_through_what_was_overwritten() -> None:
    def through(x: torch.Tensor) -> torch.Tensor:
        return x.exp().transpose(0, 1)[1:].reshape(-1).sin()

    assert ("exp", "sin") in _edges(through, torch.ones(2, 3)) or ("clone", "sin") in _edges(through, torch.ones(2, 3))

    def overwritten(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.copy_(x.sin())
        return y.cos()

    edges = _edges(overwritten, torch.ones(3))
    assert ("copy", "cos") in edges and ("exp", "cos") not in edges and ("sin", "copy") in edges


def test_nothing_and_constants_have_no_maker() -> None:
    def empty(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x.exp().sum()
        return torch.cat((torch.tensor([]), x)) + torch.tensor(2.0)

    makers = {maker for maker, taker in _edges(empty, torch.ones(3)) if taker in ("cat", "add")}
    assert makers <= {"cat"}


# --------------------------------------------------------------------------------------- bytes saved


def test_bytes_saved_are_those_of_results_that_nobody_else_takes() -> None:
    group = _found("gate_up_activation", BLOCKS["gate_up_activation"].sample())
    assert group is not None
    graph, _ = find_groups(_trace(BLOCKS["gate_up_activation"].sample()))
    # gate, up and the activation: 3 x 16 float32 each, written once and read once; the product is what comes out
    assert bytes_saved(graph, group) == 3 * 2 * (3 * 16 * 4)


def test_a_sum_that_goes_on_as_residual_saves_only_its_reading() -> None:
    graph, groups = find_groups(_trace(BLOCKS["add_norm"].sample()))
    group = next(one for one in groups if one.name == "add_norm")
    add = next(
        number for number in group.nodes if graph.nodes[number].name == "add" and graph.nodes[number].tensors == 2
    )
    taken_outside = set(graph.feeds[add]) - group.nodes
    assert not taken_outside  # the result of a model has no taker in the trace
    inner = Call(
        lambda x, y, w: BLOCKS["add_norm"].sample().function(x, y, w)[1].exp(), *BLOCKS["add_norm"].sample().inputs
    )
    graph2, groups2 = find_groups(_trace(inner))
    second = next(one for one in groups2 if one.name == "add_norm")
    written = 3 * 8 * 4
    assert bytes_saved(graph, group) - bytes_saved(graph2, second) == written


# ------------------------------------------------------------------------------------- known models

SMALL = {
    "hf:deepseek_v32": "num_hidden_layers=4 hidden_size=64 intermediate_size=96 moe_intermediate_size=32 "
    "n_routed_experts=8 num_attention_heads=4 num_key_value_heads=4 q_lora_rank=32 kv_lora_rank=16 qk_nope_head_dim=8 "
    "qk_rope_head_dim=8 v_head_dim=8 index_n_heads=4 index_head_dim=16 index_topk=8 vocab_size=99 n_group=2 topk_group=1",
    "hf:gpt_oss": "num_hidden_layers=2 hidden_size=64 intermediate_size=32 num_local_experts=4 num_attention_heads=4 "
    "num_key_value_heads=2 head_dim=16 vocab_size=99",
}
WANTED = {
    "hf:deepseek_v32": {
        "lightning_indexer": 4,
        "sparse_mla_prefill": 4,
        "sparse_mla_decode": 4,
        "mla_projection": 20,
        "rms_norm": 17,
        "moe_router": 1,
        "fused_experts": 1,
        "swiglu": 4,
        "rope": 8,
        "add_norm": 8,
        "attention_linear": 4,
    },
    "hf:gpt_oss": {"attention": 2, "moe_router": 2, "fused_experts": 2, "rms_norm": 5, "rope": 4, "add_norm": 4},
    "toy": {"lightning_indexer": 2, "kda_recurrent": 3, "kda_chunked": 3, "attention_residual": 11, "rms_norm": 22},
}


def _model_trace(source: str) -> Trace:
    changes = {key: int(value) for key, value in (pair.split("=") for pair in SMALL.get(source, "").split())}
    spec = open_model(ModelPlan(source=source, set=changes))
    phases = {"prefill": PhasePlan(tokens=12), "decode": PhasePlan(tokens=1, context=12)}
    return trace_model(spec, plan_phases(spec, WorkloadPlan(phases=phases)), mode="meta")


@pytest.mark.parametrize("source", sorted(WANTED))
def test_known_models_are_recognised_with_their_counts(source: str) -> None:
    _, groups = find_groups(_model_trace(source))
    found = {group.name: group.sites for group in groups}
    assert {name: found.get(name) for name in WANTED[source]} == WANTED[source]


def test_blocks_take_no_call_twice() -> None:
    graph, groups = find_groups(_model_trace("hf:deepseek_v32"))
    seen: set[tuple[int, str]] = set()
    for group in groups:
        if group.block.kind == "block":
            mine = {(n, phase) for n in group.nodes for phase in graph.nodes[n].site.counts if phase in group.phases}
            assert not mine & seen, group.name
            seen |= mine


def test_a_trace_of_before_there_were_sites_is_read_by_classes_alone() -> None:
    trace = _model_trace("hf:gpt_oss")
    old = trace.model_copy(update={"entries": tuple(_without_sites(entry) for entry in trace.entries)})
    _, groups = find_groups(old)
    assert {group.how for group in groups} == {"module"}
    assert "rms_norm" in {group.name for group in groups}


def _without_sites(entry: TraceEntry) -> TraceEntry:
    return entry.model_copy(update={"sites": ()})


def test_a_call_that_one_pattern_took_is_not_offered_to_the_next() -> None:
    block = BLOCKS["rms_norm"]
    _, groups = find_groups(_trace(block.sample()), {"first": block, "second": block})
    assert [group.name for group in groups] == ["first"]


def test_a_block_stands_in_one_module_and_a_fusion_may_cross_them() -> None:
    x_XD = torch.ones(3, 8)

    def across(scale: Call) -> Call:
        outer = Call(lambda: x_XD * torch.rsqrt(scale()))
        outer.scale = scale
        return outer

    inner = Call(lambda: (x_XD + x_XD).pow(2).mean(-1, keepdim=True) + 1e-6)
    _, groups = find_groups(_trace(across(inner.named("Other"))))
    assert [group.name for group in groups] == ["add_norm"]
