"""A model on two ranks: right without a fault, and every planted fault caught and named with its rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("transformers.distributed.expert_parallel")

from day0.analyzers.ranks.faults import RANK_FAULTS
from day0.analyzers.ranks.run import RanksRequest, run_ranks
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.playbook import ModelPlan
from day0.records import RanksReport, RanksRun

INDEXED = ModelPlan(source="hf:deepseek_v32", shrink=True, set={"index_topk": 8, "index_n_heads": 8})
DENSE = ModelPlan(source="hf:llama", shrink=True)
SURVIVED = tuple(name for name, fault in RANK_FAULTS.items() if not fault.ends)


def request(model: ModelPlan, *plants: str, ranks: tuple[int, ...] = (2,), **changes: object) -> RanksRequest:
    return RanksRequest(
        model=model,
        profile=load_profile("cpu"),
        ranks=ranks,
        plants=plants,
        new_tokens=2,
        repeats=2,
        step_s=60.0,
        collective_s=6.0,
        **changes,  # type: ignore[arg-type]  # the few that tests change
    )


def left_running() -> list[str]:
    """Return the commands of processes that are ranks or started some."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if "day0.analyzers.ranks" in command and f"day0-ranks-{os.getpid()}-" in command:
                found.append(command)
    return found


QUICK = ("ranks_averaged", "ranks_other_tokens")


@pytest.fixture(scope="module")
def together() -> RanksReport:
    """One start of two ranks: without a fault, with some that they survive, and at last with one that they do not."""
    return run_ranks(request(INDEXED, "", *QUICK, "ranks_killed"))


def run_of(report: RanksReport, name: str) -> RanksRun:
    return next(one for one in report.runs if one.planted == name)


def said(run: RanksRun) -> str:
    return "\n".join(run.reasons)


def test_without_a_fault_the_ranks_are_right(together: RanksReport) -> None:
    run = run_of(together, "")
    assert run.status == "pass", said(run)
    decided = {gate.metric: gate.verdict for gate in run.gates if gate.metric != "memory_over_plan"}
    assert set(decided.values()) == {"successful"}
    assert "the device does not count" in next(one.reason for one in run.gates if one.metric == "memory_over_plan")
    assert run.metrics["predicted_bytes"] > run.metrics["weight_bytes"]
    assert run.metrics["logits_same_bits"] == 1.0
    assert 0.9 < run.metrics["weights_over_fit"] < 1.1
    assert run.plan["model.layers.*.self_attn.o_proj.weight"] == "rowwise"
    for rank in run.results:
        checked = {(one.kind, one.dtype) for one in rank.collectives if one.status == "pass"}
        kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
        assert {(kind, dtype) for kind in kinds for dtype in ("float32", "bfloat16", "float16")} <= checked
        assert rank.metrics["modules_not_comparable"] < rank.metrics["modules"] / 4
        assert 0.0 < rank.metrics["decode_collective_share"] < 1.0
    assert left_running() == []


NAMED = {
    "ranks_dropped": "all_reduce: the contribution of rank 1 is missing",
    "ranks_doubled": "all_reduce: the contribution of rank 1 is counted twice",
    "ranks_averaged": "all_reduce: it is the mean of 2 ranks, not their sum",
    "ranks_one_copy_off": "all_reduce: rank 1 gets other bits than rank 0",
    "ranks_other_tokens": "rank 1 chooses other tokens or experts than the others in model.layers.0",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_collective_or_choice_is_named(together: RanksReport, name: str) -> None:
    run = run_of(together, name)
    assert run.status == "fail"
    assert NAMED[name] in said(run), said(run)
    assert run.metrics["planted_calls"] > 0


@pytest.mark.slow
def test_every_fault_that_ranks_survive_is_named() -> None:
    report = run_ranks(request(INDEXED, *SURVIVED))
    assert {one.planted: NAMED[one.planted] in said(one) for one in report.runs} == dict.fromkeys(SURVIVED, True)
    assert report.scaling == (), "planted runs are no line of the table"


def test_the_module_where_ranks_begin_to_differ_is_named(together: RanksReport) -> None:
    assert "diverges first at model.embed_tokens (Embedding) in prefill" in said(run_of(together, "ranks_averaged"))
    other = said(run_of(together, "ranks_other_tokens"))
    assert "rank 1 diverges first at model.layers.0.self_attn.indexer" in other
    assert "rank 0 diverges later" in other, "what follows from another rank's mistake is not called the first"


def test_a_killed_rank_is_named(together: RanksReport) -> None:
    run = run_of(together, "ranks_killed")
    assert run.status == "fail"
    assert run.reasons[0].startswith("rank 1 died: killed by signal 9 (SIGKILL)")
    assert [one.status for one in run.results] == ["stopped", "died"]
    assert run.results[0].reason == "it lost rank 1"
    assert left_running() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ranks_hangs", "rank 1 hung: it hangs at the call of all_reduce; the others wait in all_reduce"),
        ("ranks_raises", "rank 1 raised: RuntimeError: planted: this rank does not go on"),
        ("ranks_exits", "rank 1 died: it ended with exit code 7 and without a word"),
    ],
)
def test_a_rank_that_ends_or_hangs_is_named(name: str, words: str) -> None:
    run = run_ranks(request(DENSE, name)).runs[0]
    assert run.reasons[0].startswith(words), said(run)
    assert len(run.reasons) == 1, "the others only lost it"
    assert run.results[1].log_tail or name == "ranks_exits"
    assert left_running() == []


@pytest.mark.slow
def test_whole_experts_and_more_ranks() -> None:
    report = run_ranks(request(INDEXED, ranks=(1, 2, 4), whole_experts=True))
    assert [one.status for one in report.runs] == ["pass"] * 3, [said(one) for one in report.runs]
    assert [one.ranks for one in report.scaling] == [1, 2, 4]
    sizes = [one.weight_bytes for one in report.scaling]
    assert sizes == sorted(sizes, reverse=True)
    assert "grouped_gemm" in report.runs[1].plan.values()


TOY = ModelPlan(
    source="toy",
    set={
        "vision": False,
        "num_hidden_layers": 2,
        "mla_layers": [2],
        "kda_heads": 4,
        "mla_heads": 4,
        "shared_intermediate_size": 20,
        "n_experts": 12,
    },
)


@pytest.mark.slow
def test_the_toy_by_its_own_plan_on_four_ranks() -> None:
    right, wrong = run_ranks(request(TOY, "", "ranks_other_tokens", ranks=(4,))).runs
    assert right.status == "pass", said(right)
    assert round(right.metrics["weights_over_fit"], 2) == 1.0
    assert "rank 1 chooses other tokens or experts than the others in layers.1.self_attn.indexer" in said(wrong)


@pytest.mark.slow
def test_times_alone_need_no_golden() -> None:
    report = run_ranks(request(INDEXED, ranks=(1, 2), time_only=True, prompt_tokens=48))
    assert [one.status for one in report.runs] == ["pass"] * 2, [said(one) for one in report.runs]
    assert report.prompt_tokens == 48
    assert any("no golden was made" in note for note in report.notes)
    assert "logits_wrong" not in report.runs[1].metrics
    assert report.runs[0].results[0].collectives, "one rank checks them too: it is what one card can show of a backend"
    assert report.runs[1].metrics["choice_disagreements"] == 0.0


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        (ModelPlan(source="toy"), {}, "kda_heads is 3, which does not divide by 2 ranks"),
        (DENSE, {"ranks": (3,)}, "does not divide by 3 ranks"),
        (DENSE, {"ranks": (0,)}, "no number of ranks"),
        (DENSE, {"whole_experts": True}, "has no expert-parallel plan"),
        (DENSE, {"prompt_tokens": 1}, "do not fit its positions"),
        (DENSE, {"plants": ("ranks_other_tokens",)}, "has no indexer that selects tokens"),
        (DENSE, {"plants": ("ranks_kiled",)}, "there is no such fault of ranks"),
        (DENSE, {"plants": ("ranks_killed",), "ranks": (1,)}, "one rank has none"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    model: ModelPlan, changes: dict[str, object], words: str
) -> None:
    asked = RanksRequest(**{"model": model, "profile": load_profile("cpu"), "ranks": (2,), **changes})  # type: ignore[arg-type]
    with pytest.raises(Day0Error, match=words):
        run_ranks(asked)


def test_a_simulated_device_has_no_collectives() -> None:
    asked = RanksRequest(model=DENSE, profile=load_profile("null"), ranks=(2,))
    with pytest.raises(Day0Error, match="torch has no collectives for 'sim'") as caught:
        run_ranks(asked)
    assert "--device cpu" in caught.value.hint
