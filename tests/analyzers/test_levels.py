"""The two levels of a trace and what each entry says: links, aliases, waits, costs, statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from day0.analyzers.histogram import shape_histogram
from day0.analyzers.recorder import Recorder
from day0.analyzers.recording.memo import recipe_of
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.workload import Phase
from day0.playbook import ModelPlan
from day0.records import CallEntry, Trace, TraceEntry
from tests.analyzers.small import small_spec

PHASES = (
    Phase(name="prefill", batch=2, tokens=5, context=0, reason="test"),
    Phase(name="decode", batch=2, tokens=1, context=5, reason="test"),
)


def record(act: Callable[[], Any], *, stats: bool = False) -> Recorder:
    recorder = Recorder(stats=stats)
    with torch.no_grad(), recorder:
        act()
    return recorder


def op(recorder: Recorder, name: str) -> TraceEntry:
    (found,) = [entry for entry in recorder.entries() if entry.signature.op == name]
    return found


def call(recorder: Recorder, name: str) -> CallEntry:
    (found,) = [entry for entry in recorder.call_entries() if entry.signature.op == name]
    return found


# ------------------------------------------------------------------------------------------- links


def test_a_linear_is_one_call_above_its_operators() -> None:
    x, weight = torch.empty(2, 3, 8, device="meta"), torch.empty(5, 8, device="meta")
    recorder = record(lambda: [F.linear(x, weight) for _ in range(4)])
    linear = call(recorder, "torch.nn.functional.linear")
    below = {entry.id: entry for entry in recorder.entries()}
    assert linear.counts == {"": 4}
    assert {below[number].signature.op: times for number, times in linear.ops.items()} == {
        "aten::t": 4,
        "aten::view": 4,
        "aten::mm": 4,
        "aten::_unsafe_view": 4,
    }
    assert all(entry.calls == (linear.id,) for entry in below.values())
    assert linear.flops == op(recorder, "aten::mm").flops == 2 * 6 * 8 * 5


def test_every_link_leads_both_ways_and_the_counts_add_up() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    calls, ops = {one.id: one for one in trace.calls}, {one.id: one for one in trace.entries}
    assert len(ops) == len(trace.entries)
    assert len(calls) == len(trace.calls)
    for entry in trace.entries:
        times = [calls[number].ops[entry.id] for number in entry.calls]
        assert sum(times) == sum(entry.counts.values())
    for one in trace.calls:
        assert all(one.id in ops[number].calls for number in one.ops)


def test_a_call_has_module_line_and_phases() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    adds = [one for one in trace.calls if one.signature.op == "torch.Tensor.add_"]
    assert [one.counts for one in adds] == [{"decode": 2}, {"prefill": 2}]
    assert {one.module for one in adds} == {"layers.0"}
    assert {one.modules for one in adds} == {2}
    assert all(one.source.startswith("analyzers/small.py:") for one in adds)


def test_functions_that_call_nothing_are_not_calls() -> None:
    x = torch.empty(2, 3)
    assert record(lambda: (x.shape, x.dtype, x.size(0), x.dim(), x.is_contiguous())).call_entries() == ()


def test_only_the_outermost_function_is_a_call() -> None:
    a, b = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    recorder = record(lambda: torch.einsum("ij,jk->ik", a, b))
    assert [one.signature.op for one in recorder.call_entries()] == ["torch.einsum"]
    assert len(recorder.entries()) > 1


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (lambda x: F.softmax(x, -1), "torch.nn.functional.softmax"),
        (lambda x: F.rms_norm(x, (4,)), "torch.nn.functional.rms_norm"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "torch.nn.functional.scaled_dot_product_attention"),
        (lambda x: torch.linalg.norm(x), "torch.linalg.norm"),
        (lambda x: torch.cat([x, x]), "torch.cat"),
        (lambda x: x.mT, "torch.Tensor.mT"),
        (lambda x: 1 - x, "torch.Tensor.__rsub__"),
        (lambda x: x[..., 1:3], "torch.Tensor.__getitem__"),
        (lambda x: torch.ops.aten.relu(x), "torch.ops.aten.relu"),
        (lambda x: torch.arange(3, device="meta"), "torch.arange"),
    ],
)
def test_functions_have_the_names_that_one_looks_up(act: Callable[[torch.Tensor], Any], name: str) -> None:
    x = torch.empty(2, 3, 4, 4, device="meta")
    assert [one.signature.op for one in record(lambda: act(x)).call_entries()] == [name]


def test_slices_and_dots_stand_in_the_signature_as_text() -> None:
    x = torch.empty(2, 3, 4, device="meta")
    (one,) = record(lambda: x[..., 1:3]).call_entries()
    (index,) = one.signature.args[1:]
    assert index.kind == "list"
    assert [getattr(item, "value", "") for item in index.items] == ["...", "1:3"]


def test_the_recorder_looks_at_arguments_unseen() -> None:
    ids, table = torch.tensor([3, 1]), torch.randn(5, 2)
    recorder = record(lambda: F.embedding(ids, table))
    assert [entry.signature.op for entry in recorder.entries()] == ["aten::embedding"]
    (value,) = op(recorder, "aten::embedding").signature.args[1:2]
    assert value.kind == "tensor"
    assert value.range == (1, 3)


def test_one_signature_on_two_devices_is_one_entry_at_both_levels() -> None:
    recorder = record(lambda: [torch.relu(torch.empty(3, device=device)) for device in ("meta", "cpu", "meta")])
    assert op(recorder, "aten::relu").counts == {"": 3}
    assert call(recorder, "torch.relu").counts == {"": 3}
    assert call(recorder, "torch.relu").ops == {op(recorder, "aten::relu").id: 3}


# ------------------------------------------------------------------------------------------ aliases


def test_arguments_that_share_storage_are_another_signature() -> None:
    x, y = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    recorder = record(lambda: (x * y, x * x))
    assert [sum(e.counts.values()) for e in recorder.entries()] == [1, 1]
    aliases = sorted(str([getattr(v, "alias", None) for v in e.signature.args]) for e in recorder.entries())
    assert aliases == ["[0, 0]", "[None, None]"]


def test_of_three_arguments_two_that_share_storage_are_told_from_none() -> None:
    x, y, z = (torch.empty(4, device="meta") for _ in range(3))
    recorder = record(lambda: (torch.cat([x, y, z]), torch.cat([x, y, x]), torch.cat([x, x, y])))
    assert len(recorder.entries()) == 3


def test_outputs_name_the_arguments_whose_storage_they_share() -> None:
    x, y = torch.zeros(4, 2), torch.ones(4, 2)
    recorder = record(lambda: (x.add_(y), x.t(), x.split(2), torch.add(x, y)))
    assert op(recorder, "aten::add_.Tensor").output_aliases == (("self",),)
    assert op(recorder, "aten::add_.Tensor").mutates == ("self",)
    assert op(recorder, "aten::t").output_aliases == (("self",),)
    assert op(recorder, "aten::split.Tensor").output_aliases == (("self",), ("self",))
    assert op(recorder, "aten::add.Tensor").output_aliases == ()


def test_a_reshape_that_copies_is_told_from_one_that_does_not() -> None:
    plain, turned = torch.zeros(4, 2), torch.zeros(2, 4).t()
    recorder = record(lambda: (plain.reshape(8), turned.reshape(8)))
    aliases = {str(one.signature.args[0]): one.output_aliases for one in recorder.call_entries()}
    assert sorted(aliases.values()) == [(), (("0",),)]


def test_an_in_place_function_is_described_as_it_was_given() -> None:
    x = torch.empty(2, 3, device="meta")
    recorder = record(lambda: x.t_())
    (value,) = call(recorder, "torch.Tensor.t_").signature.args
    assert value.kind == "tensor"
    assert value.shape == (2, 3)


# -------------------------------------------------------------------------------------------- waits


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (lambda x: x.sum().item(), "torch.Tensor.item"),
        (lambda x: bool(x.sum() > 0), "torch.Tensor.__bool__"),
        (lambda x: int(x.sum()), "torch.Tensor.__int__"),
        (lambda x: x.tolist(), "torch.Tensor.tolist"),
        (lambda x: x.numpy(), "torch.Tensor.numpy"),
        (lambda x: x.cpu(), "torch.Tensor.cpu"),
        (lambda x: x.nonzero(), "torch.Tensor.nonzero"),
        (lambda x: torch.where(x > 0), "torch.where"),
        (lambda x: x[x > 0], "torch.Tensor.__getitem__"),
        (lambda x: torch.repeat_interleave(torch.tensor([2, 1])), "torch.repeat_interleave"),
    ],
)
def test_the_host_waits(act: Callable[[torch.Tensor], Any], name: str) -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    waits = {one.signature.op for one in record(lambda: act(x)).call_entries() if one.host_sync}
    assert waits == {name}


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x.__setitem__(x > 0, 0.0),  # a masked fill
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.repeat_interleave(torch.tensor([2, 1]), output_size=3),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.to(torch.float64),
    ],
)
def test_the_host_does_not_wait(act: Callable[[torch.Tensor], Any]) -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    assert not any(one.host_sync for one in record(lambda: act(x)).call_entries())


def test_a_list_of_values_does_not_get_into_the_record() -> None:
    one = call(record(lambda: torch.tensor([7.25, 8.5]).tolist()), "torch.Tensor.tolist")
    assert one.outputs == ()
    assert one.ops == {}


# -------------------------------------------------------------------------------------------- costs


def test_a_product_of_groups_counts_each_row_once_and_only_the_experts_it_can_meet() -> None:
    tokens, hidden, width, experts = 6, 16, 32, 64
    x = torch.empty(tokens, hidden, device="meta", dtype=torch.bfloat16)
    weights = torch.empty(experts, hidden, width, device="meta", dtype=torch.bfloat16)
    offsets = torch.empty(experts, device="meta", dtype=torch.int32)
    entry = op(record(lambda: torch._grouped_mm(x, weights, offs=offsets)), "aten::_grouped_mm")
    assert entry.flops == 2 * tokens * hidden * width
    moved = 2 * (tokens * hidden + tokens * hidden * width + tokens * width) + 4 * experts
    assert entry.bytes == moved


def test_an_embedding_reads_its_rows_and_not_its_table() -> None:
    table, ids = torch.empty(1000, 8, device="meta"), torch.empty(3, device="meta", dtype=torch.int64)
    assert op(record(lambda: F.embedding(ids, table)), "aten::embedding").bytes == 3 * 8 + 2 * (3 * 8 * 4)


def test_a_cache_that_is_written_to_moves_what_is_written() -> None:
    cache, row = torch.empty(1000, 8, device="meta"), torch.empty(2, 8, device="meta")
    where = torch.empty(2, device="meta", dtype=torch.int64)
    entry = op(record(lambda: cache.index_copy_(0, where, row)), "aten::index_copy_")
    assert entry.bytes == 2 * 8 + 2 * (2 * 8 * 4)


def test_what_is_expanded_is_read_once_and_a_new_tensor_only_written() -> None:
    x, bias = torch.empty(4, 8, device="meta"), torch.empty(1, 8, device="meta").expand(4, 8)
    recorder = record(lambda: (x + bias, torch.zeros_like(x), torch.empty_like(x)))
    assert op(recorder, "aten::add.Tensor").bytes == 4 * (32 + 8 + 32)
    assert op(recorder, "aten::zeros_like").bytes == 4 * 32
    assert op(recorder, "aten::empty_like").bytes == 0


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_attention_costs_the_same_on_both_devices(device: str) -> None:
    # Shapes: [B, H, S, D] with keys [B, H, T, D] and values [B, H, T, V].
    q, k, v = (torch.zeros(2, 3, n, 16, device=device) for n in (5, 7, 7))
    recorder = record(lambda: F.scaled_dot_product_attention(q, k, v))
    assert call(recorder, "torch.nn.functional.scaled_dot_product_attention").flops == 2 * 2 * 3 * 5 * 7 * (16 + 16)


@pytest.mark.parametrize("bias", [False, True])
def test_flops_are_those_of_torchs_counter(bias: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=bias), nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(56, 2)).to("meta")
    x = torch.empty(2, 3, 8, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(x)
    recorder = record(lambda: model(x))
    ours = sum(entry.flops * sum(entry.counts.values()) for entry in recorder.entries())
    assert ours == counter.get_total_flops() > 0
    assert ours == sum(one.flops * sum(one.counts.values()) for one in recorder.call_entries())


def test_a_layer_of_deepseek_v32_costs_what_one_counts_by_hand() -> None:
    pytest.importorskip("transformers")
    spec = open_model(ModelPlan(source="hf:deepseek_v32", set={"num_hidden_layers": 1, "mlp_layer_types": ["sparse"]}))
    trace = trace_model(spec, (Phase(name="prefill", batch=1, tokens=64, context=0, reason="test"),), mode="meta")
    tokens, hidden, heads, query, latent = 64, 7168, 128, 1536, 512
    attention = (
        hidden * query + query * heads * 192 + hidden * (latent + 64) + latent * heads * 256 + heads * 128 * hidden
    )
    indexer = query * 64 * 128 + hidden * 128 + hidden * 64
    experts = 3 * hidden * 2048 * (8 + 1) + hidden * 256
    head = hidden * 129_280
    scores = heads * tokens * (192 + 128) + 64 * tokens * 128 + 64 * tokens
    products = 2 * tokens * (attention + indexer + experts + head + scores)
    assert sum(entry.flops * sum(entry.counts.values()) for entry in trace.entries) == products


# --------------------------------------------------------------------------------- memo, statistics


def test_results_made_from_their_layout_change_nothing_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []
    for recipe in (recipe_of, lambda *_: None):
        monkeypatch.setattr("day0.analyzers.recorder.recipe_of", recipe)
        traces.append(trace_model(small_spec(), PHASES, mode="meta"))
    assert traces[0] == traces[1]


def test_a_result_made_from_its_layout_is_a_new_one() -> None:
    x = torch.empty(4, 2, device="meta").t()
    made: list[torch.Tensor] = []
    record(lambda: made.extend(torch.relu(x) for _ in range(3)))
    assert len({one.untyped_storage()._cdata for one in made}) == 3
    assert {(one.shape, one.stride(), one.dtype, one.device.type) for one in made} == {
        (torch.Size([2, 4]), (1, 2), torch.float32, "meta")
    }


def test_a_view_that_its_schema_does_not_call_one_stays_a_view() -> None:
    x = torch.empty(4, 2, device="meta")
    made: list[torch.Tensor] = []
    record(lambda: made.extend(torch.ops.aten._unsafe_view(x, [8]) for _ in range(3)))
    assert {one.untyped_storage()._cdata for one in made} == {x.untyped_storage()._cdata}


def test_statistics_cover_every_call_and_count_what_is_not_finite() -> None:
    def act() -> None:
        for values in ([1.0, -4.0], [float("inf"), 2.0], [float("nan"), float("nan")]):
            torch.relu(torch.tensor(values))

    stats = op(record(act, stats=True), "aten::relu").stats
    assert stats["self"].model_dump() == {"min": -4.0, "max": 2.0, "absmax": 4.0, "nonfinite": 3}
    assert stats["output 0"].nonfinite == 3
    assert stats["output 0"].min == 0.0


def test_statistics_are_left_out_unless_asked_for() -> None:
    assert op(record(lambda: torch.relu(torch.ones(2))), "aten::relu").stats == {}


def test_statistics_of_nothing_finite_have_no_values() -> None:
    stats = op(record(lambda: torch.relu(torch.full((2,), float("nan"))), stats=True), "aten::relu").stats
    assert stats["self"].model_dump() == {"min": None, "max": None, "absmax": None, "nonfinite": 2}


# --------------------------------------------------------------------------------------- histograms


def test_shapes_are_counted_by_operator_and_phase() -> None:
    trace = trace_model(small_spec(), PHASES, mode="meta")
    rows = shape_histogram(trace, "aten::add_")
    assert [(row.shapes, row.counts) for row in rows] == [
        ("float32[2, 1, 8] float32[2, 1, 8]", {"decode": 2}),
        ("float32[2, 5, 8] float32[2, 5, 8]", {"prefill": 2}),
    ]
    assert sum(row.calls for row in shape_histogram(trace)) == sum(phase.calls for phase in trace.phases)


def test_an_operator_that_is_not_there_is_named_with_a_neighbour() -> None:
    trace: Trace = trace_model(small_spec(), PHASES, mode="meta")
    with pytest.raises(Day0Error) as caught:
        shape_histogram(trace, "liner")
    assert "no operator and no function 'liner'" in caught.value.what
    assert "linear" in caught.value.hint
