"""One rank of several: shapes, costs and collectives against the whole model; refusals with their figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.distributed.expert_parallel")

import torch.distributed as dist
from torch import nn

from day0.analyzers.parallel import trace_one_rank
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.workload import Phase
from day0.playbook import ModelPlan
from day0.records import Trace
from tests.analyzers.small import small_spec

PHASES = (
    Phase(name="prefill", batch=1, tokens=8, context=0, reason="test"),
    Phase(name="decode", batch=1, tokens=1, context=8, reason="test"),
)
TINY = {
    "hf:qwen3": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": 128,
    },
    "hf:qwen3_moe": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_experts": 12,  # no other weight of a rank has as many rows: equal signatures are one entry
        "num_experts_per_tok": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 128,
    },
    "hf:gpt_oss": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
    },
}


def tiny(source: str, **changes: int) -> ModelSpec:
    return open_model(ModelPlan(source=source, set={**TINY[source], **changes}))


def flops(trace: Trace, phase: str, *modules: str) -> int:
    """Of the products made in modules whose last name is given."""
    return sum(
        entry.flops * entry.counts.get(phase, 0)
        for entry in trace.entries
        if entry.module.rpartition(".")[2] in modules
    )


def sent(trace: Trace, phase: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in trace.entries:
        if entry.collective and phase in entry.counts:
            counts[entry.collective.kind] = counts.get(entry.collective.kind, 0) + entry.counts[phase]
    return counts


CUT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts", "lm_head", "self_attn")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("source", ["hf:qwen3", "hf:qwen3_moe"])
def test_the_ranks_together_do_the_work_of_the_whole(source: str, phase: str) -> None:
    whole = trace_model(tiny(source), PHASES, mode="meta")
    rank = trace_one_rank(tiny(source), PHASES, 4)
    assert flops(whole, phase, *CUT) > 0
    assert flops(rank, phase, *CUT) * 4 == flops(whole, phase, *CUT)


def test_what_no_rule_names_stays_whole() -> None:
    whole = trace_model(tiny("hf:qwen3_moe"), PHASES, mode="meta")
    rank = trace_one_rank(tiny("hf:qwen3_moe"), PHASES, 4)
    assert flops(rank, "prefill", "gate") == flops(whole, "prefill", "gate") > 0


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_collectives_are_operators_with_sizes(phase: str) -> None:
    rank = trace_one_rank(tiny("hf:qwen3"), PHASES, 4)
    # Embedding, and of each layer attention and feed-forward; logits are gathered.
    assert sent(rank, phase) == {"all_reduce": 5, "all_gather": 1}
    tokens = 8 if phase == "prefill" else 1
    for entry in rank.entries:
        if entry.collective and phase in entry.counts:
            payload = 2 * tokens * (64 if entry.collective.kind == "all_reduce" else 128 // 4)
            wire = 2 * 3 * payload // 4 if entry.collective.kind == "all_reduce" else 3 * payload
            assert (entry.collective.ranks, entry.collective.bytes, entry.collective.wire_bytes) == (4, payload, wire)


def test_what_a_rank_looks_up_is_its_own_part_of_the_vocabulary() -> None:
    rank = trace_one_rank(tiny("hf:qwen3"), PHASES, 4)
    tables = [entry.signature.args[0] for entry in rank.entries if entry.signature.op == "aten::embedding"]
    assert {value.shape for value in tables if value.kind == "tensor"} == {(128 // 4, 64)}


def test_experts_without_a_rule_for_tensors_go_whole_to_ranks() -> None:
    rank = trace_one_rank(tiny("hf:gpt_oss"), PHASES, 4)
    assert rank.parallel is not None
    assert "grouped_gemm" in rank.parallel.plan.values()
    experts = {
        value.shape[0]
        for entry in rank.entries
        if entry.signature.op == "aten::_grouped_mm"
        for value in entry.signature.args[1:2]
        if value.kind == "tensor"
    }
    assert experts == {2}


def test_the_record_says_what_a_rank_holds() -> None:
    rank = trace_one_rank(tiny("hf:qwen3"), PHASES, 4)
    info = rank.parallel
    assert info is not None
    assert (info.world_size, info.rank) == (4, 0)
    assert rank.model.parameters / 4 < info.parameters < rank.model.parameters / 2
    assert info.plan["model.layers.*.self_attn.q_proj.weight"] == "colwise"
    assert "rank 0 of 4" in rank.mode_reason


def test_a_head_that_is_tied_to_the_embedding_is_cut_and_counted_once() -> None:
    tied = open_model(ModelPlan(source="hf:qwen3", set={**TINY["hf:qwen3"], "tie_word_embeddings": True}))
    whole = trace_model(tied, PHASES, mode="meta")
    rank = trace_one_rank(tied, PHASES, 4)
    assert rank.parallel is not None
    assert rank.model.parameters == whole.model.parameters
    apart = trace_one_rank(tiny("hf:qwen3", tie_word_embeddings=False), PHASES, 4)
    assert apart.parallel is not None
    assert apart.parallel.parameters - rank.parallel.parameters == 128 * 64 // 4
    assert flops(rank, "prefill", *CUT) == flops(apart, "prefill", *CUT) > 0


def test_a_plan_that_does_not_fit_the_model_is_named_with_its_rule() -> None:
    spec = tiny("hf:qwen3")

    def build(device: str) -> nn.Module:
        model: Any = spec.build(device)
        model._tp_plan = {"model.layers.*.self_attn.o_proj": "rowwise"}  # what it is given is not cut
        return model  # type: ignore[no-any-return]

    with pytest.raises(Day0Error) as caught:
        trace_one_rank(dataclasses.replace(spec, build=build), PHASES, 2)
    assert "layers.0.self_attn.o_proj" in caught.value.where
    assert any("cuts model.layers.*.self_attn.o_proj by the rule 'rowwise'" in fact for fact in caught.value.facts)
    assert "the plan of this model is wrong" in caught.value.hint


def test_the_same_rank_twice_is_the_same_record() -> None:
    first, second = (trace_one_rank(tiny("hf:qwen3_moe"), PHASES, 4) for _ in range(2))
    assert first == second
    assert "0x" not in json.dumps(first.model_dump(mode="json"))


def test_the_process_group_is_gone_afterwards_even_after_a_refusal() -> None:
    with pytest.raises(Day0Error):
        trace_one_rank(tiny("hf:qwen3"), PHASES, 3)
    assert not dist.is_initialized()
    trace_one_rank(tiny("hf:qwen3"), PHASES, 2)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("ranks", "changes", "figure"),
    [
        (3, {}, "num_attention_heads is 8, which does not divide by 3 ranks"),
        (8, {}, "num_key_value_heads is 4, which does not divide by 8 ranks"),
        (4, {"intermediate_size": 98}, "mlp.gate_proj.weight (colwise) has size 98 in dimension 0"),
        (4, {"vocab_size": 126}, "model.embed_tokens.weight (embedding_rowwise) has size 126 in dimension 0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_figure(ranks: int, changes: dict[str, int], figure: str) -> None:
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(tiny("hf:qwen3", **changes), PHASES, ranks)
    assert figure in caught.value.what
    assert f"does not divide by {ranks} ranks" in caught.value.what


def test_each_half_of_a_packed_weight_has_to_divide() -> None:
    # 2 x 34 divides by four, 34 does not.
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(tiny("hf:qwen3_moe", moe_intermediate_size=34), PHASES, 4)
    assert "gate_up_proj (packed_colwise) has two halves of 34" in caught.value.what


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(tiny("hf:gpt_oss", num_local_experts=6), PHASES, 4)
    assert "(grouped_gemm) has size 6 in dimension 0" in caught.value.what


def test_a_model_without_a_plan_is_refused_with_the_reason() -> None:
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(small_spec(), PHASES, 2)
    assert "has no tensor-parallel plan" in caught.value.what


@pytest.mark.parametrize(("mode", "ranks"), [("real", 2), ("auto", 1), ("auto", 1 << 17)])
def test_modes_and_numbers_that_make_no_sense_are_refused(mode: str, ranks: int) -> None:
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(tiny("hf:qwen3"), PHASES, ranks, mode=mode)
    assert caught.value.where == "--world-size"


def test_the_parallel_trace_goes_through_a_file(tmp_path: Path) -> None:
    rank = trace_one_rank(tiny("hf:qwen3"), PHASES, 2)
    path = tmp_path / "trace.json"
    path.write_text(rank.model_dump_json(), encoding="utf-8")
    assert Trace.model_validate_json(path.read_text(encoding="utf-8")) == rank
