"""The toy's canary with faults planted on the simulated device: each stops at the earliest stage that sees it, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.canary_ready import canary, make_ready, stages_of

STAGES = ("load", "one_op", "one_layer", "some_layers", "all_layers", "small_batch", "past_topk", "vision", "generate")

QUICK = {
    "nibbles_swapped": ("one_op", "day0::mxfp4_decode (day0::mxfp4_decode@2 base:table_16==1.1)"),
    "replacement_never_runs": ("one_op", "aten::rsqrt (aten::rsqrt@1 base:sqrt_reciprocal==1.0)"),
}
SLOW = {
    "falls_back_silently": ("one_op", "aten::embedding (native)"),
    "all_nan": ("one_op", "aten::sigmoid (native)"),
    "delta_state_transposed": ("one_op", "day0::kda_chunked (day0::kda_chunked@1 base:reference==1.0)"),
    "selection_by_recency": ("one_layer", "layers.3.self_attn.indexer (Indexer) in prefill"),
    "selection_by_recency_when_replayed": ("some_layers", "layers.3.self_attn.indexer (Indexer) in prefill"),
    "experts_unweighted_in_decode": ("all_layers", "layers.1.mlp.experts (Experts) in decode"),
    "state_stale_when_replayed": ("all_layers", "layers.0.self_attn (KdaAttention) in decode"),
    "matmul_not_reproducible": ("all_layers", "aten::mm, call 1 of the pass"),
    "no_kernel_for_one_row": ("all_layers", "layers.0.self_attn.q_proj (Linear)"),
    "stale_pages": ("generate", "layers.3.self_attn.indexer (Indexer) in decode 2"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy on the simulated device with its gaps closed."""
    folder = tmp_path_factory.mktemp("faults") / "r"
    phases = ["prefill=6", "decode=1@6", "prefill_long=24", "decode_long=1@24"]
    make_ready(folder, "sim", phases, STAGES, batch=2, prompt_tokens=20, new_tokens=4)
    return folder


def _stops(run: Path, fault: str, stage: str, first: str) -> None:
    assert canary(run, plant=[fault]) == 1
    found = stages_of(run)
    assert [found[name]["status"] for name in STAGES[: STAGES.index(stage)] if found[name]["skip"] != "unfit"].count(
        "pass"
    ) >= 1
    assert (found[stage]["status"], found[stage]["diverged"]) == ("fail", first), found[stage]["reason"]
    for name in STAGES[STAGES.index(stage) + 1 :]:
        assert (found[name]["status"], found[name]["skip"]) == ("skipped", "failed")
    assert (run / found[stage]["evidence"]).is_dir()
    assert found[stage]["next_command"]


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_of_one_operator_is_stopped_before_the_model_runs(run: Path, fault: str) -> None:
    _stops(run, fault, *QUICK[fault])


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW)
def test_a_fault_is_stopped_at_the_earliest_stage_that_sees_it(run: Path, fault: str) -> None:
    _stops(run, fault, *SLOW[fault])


@pytest.mark.slow
def test_without_a_fault_every_stage_passes_and_operators_have_figures(run: Path) -> None:
    assert canary(run) == 0
    found = stages_of(run)
    assert {name for name, stage in found.items() if stage["status"] != "pass"} == {"vision"}
    operators = found["all_layers"]["operators"]
    assert {one["clock"] for one in operators} == {"sim"}
    assert any(one["implementation"].startswith("day0::kda_chunked@") for one in operators)
    assert (run / "canary.trace.json").exists() and (run / "canary.prom").exists()
