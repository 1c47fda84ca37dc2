"""The parts of the canary on several ranks that need no second process.

Shape suffixes: N elements.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from day0.analyzers.canary.gates import Figure
from day0.analyzers.ranks.align import part_of_rank, parts_of_rank
from day0.analyzers.ranks.board import RankBoard
from day0.analyzers.ranks.collective_calls import wait_for
from day0.analyzers.ranks.collectives import explain_sum
from day0.analyzers.ranks.faults import planted_in_rank
from day0.analyzers.ranks.judge import judge_run
from day0.analyzers.ranks.launch import _end, _exception, _hanging, _Ranks, _with_causes, launch
from day0.analyzers.ranks.setting import Facts, RanksSetting
from day0.cli.canary_ranks import parse_ranks
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.playbook import ModelPlan
from day0.records import RankResult
from day0.reference_ops.torch_ops import register_operators


def test_a_part_is_found_by_its_shape() -> None:
    whole = torch.arange(48.0).reshape(2, 3, 8)
    assert part_of_rank(whole, whole, 1, 2) is whole
    mine = part_of_rank(torch.empty(2, 3, 4), whole, 1, 2)
    assert mine is not None
    assert torch.equal(mine, whole[..., 4:])
    packed = part_of_rank(torch.empty(2, 3, 4), whole, 1, 2, packed=True)
    assert packed is not None
    assert torch.equal(packed, whole[..., [2, 3, 6, 7]])
    assert part_of_rank(torch.empty(2, 3, 3), whole, 1, 2) is None
    assert part_of_rank(torch.empty(2, 8), whole, 1, 2) is None
    assert parts_of_rank([torch.empty(2, 3, 4), torch.empty(1)], [whole, whole], 0, 2, packed=False) is None


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((1.0, 0.0, 1.0), "the contribution of rank 1 is missing"),
        ((1.0, 1.0, 2.0), "the contribution of rank 2 is counted twice"),
        ((1 / 3, 1 / 3, 1 / 3), "it is the mean of 3 ranks, not their sum"),
        ((1.0, 1.0, -1.0), ""),
    ],
)
def test_a_wrong_sum_is_explained(weights: tuple[float, ...], words: str) -> None:
    given = [torch.randn(64, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    got_N = sum((weight * one for weight, one in zip(weights, given, strict=True)), torch.zeros(64))
    assert explain_sum(got_N, given) == words


def boards(folder: Path, *states: str) -> tuple[RankBoard, ...]:
    """Boards of living ranks; a state is what each does: `step`, `call` or `wait`, and how many collectives before."""
    made = []
    for number, state in enumerate(states):
        board = RankBoard(folder / f"board-{number}")
        board.begin()
        word, _, before = state.partition(" ")
        for _ in range(int(before or 0)):
            board.enter("all_gather", 1.0)
            board.leave(1.0)
        if word in ("call", "wait"):
            board.enter("all_reduce", 1.0)
        if word == "wait":
            board.wait()
        made.append(board)
    return tuple(made)


@pytest.mark.parametrize(
    ("states", "guilty", "words"),
    [
        (("wait", "step", "wait"), {1}, "outside of collectives; the others wait in all_reduce"),
        (("call", "wait"), {0}, "at the call of all_reduce"),
        (("wait 3", "wait 2", "wait 3"), {1}, "its collective 3, and the others are further"),
        (("wait 2", "wait 2"), {0, 1}, "all ranks wait for each other"),
    ],
)
def test_who_hangs_is_read_from_what_ranks_said_last(
    tmp_path: Path, states: tuple[str, ...], guilty: set[int], words: str
) -> None:
    found = _hanging(boards(tmp_path, *states))
    assert set(found) == guilty
    assert all(words in one for one in found.values()), found


def test_a_board_knows_when_its_time_is_over(tmp_path: Path) -> None:
    board = RankBoard(tmp_path / "board")
    assert not board.late, "who has not begun is not late"
    board.begin()
    assert board.pid == os.getpid()
    board.phase("x" * 1000, -1.0)
    assert board.late
    assert board.inside == ""
    board.phase("timing", 60.0)
    assert not board.late
    assert RankBoard(tmp_path / "board").where == "timing"


def test_what_lost_another_rank_is_no_cause() -> None:
    reason = "RuntimeError: Connection closed"
    lost = RankResult(rank=0, status="stopped", reason=reason, exit_code=1, log_tail=(reason,))
    died = RankResult(rank=1, status="died", reason="killed by signal 9 (SIGKILL)", exit_code=-9)
    assert [one.reason for one in _with_causes((lost, died))] == ["it lost rank 1", died.reason]
    alone = _with_causes((lost, RankResult(rank=1, status="stopped")))
    assert [one.status for one in alone] == ["raised", "stopped"], "somebody has to be told about"


GLOO = "RuntimeError: [tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4017."
OWN = "RuntimeError: planted: this rank does not go on"


def test_the_rank_that_raised_is_named_whoever_torchrun_saw_first(tmp_path: Path) -> None:
    made = boards(tmp_path, "call", "call")  # both had not yet given their part
    for number, text in enumerate((GLOO, OWN)):
        (tmp_path / f"log-{number}").write_text(f"[rank{number}]: Traceback (most recent call last):\n{text}\n")
    ranks = _Ranks(folder=tmp_path, process=None, boards=made)  # type: ignore[arg-type]  # nothing is asked of it
    for codes in ({0: 1}, {0: 1, 1: -15}, {0: -15, 1: 1}, {0: 1, 1: 1}):
        ends = _with_causes(tuple(_end(ranks, number, codes, {}) for number in range(2)))
        assert [one.status for one in ends] == ["stopped", "raised"], codes
        assert ends[1].reason == OWN


def test_an_exception_is_the_last_line_of_a_traceback() -> None:
    lines = ("Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: 3 is: odd", "  note")
    assert _exception(lines) == "ValueError: 3 is: odd"
    assert _exception(("some words: that are no error",)) == ""


SETTING = RanksSetting(
    model=ModelPlan(source="hf:llama"), profile=load_profile("cpu"), ranks=3, prompt_tokens=4, new_tokens=1
)
PHASES = ("prefill", "decode")
METRICS = {f"{phase}_{name}": 0.0 for phase in PHASES for name in ("wrong", "not_comparable", "error")}
METRICS |= {"choices_wrong": 0.0, "diverges_at": 9.0, "unexplained_tokens": 0.0, "weight_bytes": 100.0, "limit": 1.0}


def facts(folder: Path, rank: int, tokens: tuple[int, ...] = (1,), chosen: int = 5, **metrics: float) -> RankResult:
    result = RankResult(rank=rank, status="done", tokens=tokens, metrics={**METRICS, **metrics})
    (folder / f"facts-0-{rank}.json").write_text(Facts(result=result).model_dump_json())
    rows = torch.tensor([[0, 1, chosen]])
    # In the file the later one stands first by name.
    save_file({"0|z|0": rows, "1|a|0": rows.clone()}, folder / f"choices-0-{rank}.safetensors")
    return result


def test_ranks_that_agree_pass(tmp_path: Path) -> None:
    ends = [facts(tmp_path, rank) for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(105.0))
    assert (run.status, run.reasons) == ("pass", ())


def test_the_rank_that_is_alone_is_named(tmp_path: Path) -> None:
    ends = [facts(tmp_path, 0, chosen=7), facts(tmp_path, 1), facts(tmp_path, 2, tokens=(2,))]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0))
    assert run.status == "fail"
    assert run.reasons[0].startswith("rank 0 chooses other tokens or experts than the others in z, call 1")
    assert "1 later choices differ too" in run.reasons[0]
    assert "rank 2 generates [2], and rank 0 [1]" in run.reasons


def test_weights_beyond_the_prediction_fail(tmp_path: Path) -> None:
    ends = [facts(tmp_path, rank, weight_bytes=100.0 + 40.0 * rank) for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0))
    assert run.reasons == ("weights_over_fit is 1.8, the gate says <= 1.1",)
    unknown = judge_run(SETTING, 0, ends, tmp_path, Figure(None, why="day0 fit: it does not run on meta"))
    assert unknown.status == "pass"
    assert [one.verdict for one in unknown.gates if one.metric == "weights_over_fit"] == ["inconclusive"] * 2


def test_memory_beyond_the_prediction_fails(tmp_path: Path) -> None:
    ends = [facts(tmp_path, rank, step_bytes=50.0 + 40.0 * rank) for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0), Figure(150.0))
    assert run.reasons == ("memory_over_plan is 1.53333, the gate says <= 1.1",)
    assert run.metrics["peak_bytes"] == 230.0, "weights and the step of the fullest rank"
    less = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0), Figure(300.0))
    assert less.reasons == ("memory_over_plan is 0.766667, the gate says >= 0.9",)
    assert judge_run(SETTING, 0, ends, tmp_path, Figure(100.0), Figure(225.0)).status == "pass"


def test_memory_that_nobody_counts_is_said(tmp_path: Path) -> None:
    ends = [facts(tmp_path, rank) for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0), Figure(150.0))
    undecided = {one.reason for one in run.gates if one.verdict == "inconclusive"}
    assert undecided == {"memory_over_plan is not known: memory: the device does not count what is allocated"}


def test_without_a_golden_ranks_are_held_against_each_other_alone(tmp_path: Path) -> None:
    plain = {"weight_bytes": 1.0}
    for rank in range(3):
        facts(tmp_path, rank, tokens=(1 + rank // 2,))
        result = RankResult(rank=rank, status="done", tokens=(1 + rank // 2,), metrics=plain)
        (tmp_path / f"facts-0-{rank}.json").write_text(Facts(result=result).model_dump_json())
    ends = [RankResult(rank=rank, status="done") for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(1.0))
    assert run.reasons == ("rank 2 generates [2], and rank 0 [1]",)
    open_ = {one.metric for one in run.gates if "no golden was made" in one.reason}
    assert open_ == {"choices_wrong", "diverged_ranks", "logits_wrong", "unexplained_tokens"}


class _Boxed:
    """Stands for what torch hands on in place of a collective's work."""


def test_a_collective_without_work_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # NCCL's blocking calls run on the caller's stream and hand back no work.
    monkeypatch.setattr(torch, "ScriptObject", _Boxed)
    monkeypatch.setattr(torch._C._distributed_c10d.Work, "unbox", staticmethod(lambda _: None))
    wait_for(([torch.ones(1)], _Boxed()))


def test_logits_that_cannot_be_judged_are_not_called_right(tmp_path: Path) -> None:
    ends = [facts(tmp_path, rank, prefill_not_comparable=1.0) for rank in range(3)]
    run = judge_run(SETTING, 0, ends, tmp_path, Figure(100.0))
    assert next(one for one in run.gates if one.metric == "logits_wrong").verdict == "inconclusive"


@pytest.mark.parametrize(("text", "numbers"), [("2", (2,)), ("1,2, 4", (1, 2, 4)), ("2,2", (2,))])
def test_numbers_of_ranks_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_ranks(text) == numbers


@pytest.mark.parametrize("text", ["", "two", "1,", "-1", "1.5", "99999999", "²"])
def test_what_is_no_number_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(Day0Error, match="is no number of ranks"):
        parse_ranks(text)


def test_variables_of_the_machine_reach_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "NVLS=$NCCL_NVLS_ENABLE"\nexit 3\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    with pytest.raises(Day0Error, match="torchrun ended with exit code 3") as caught:
        launch(SETTING, tmp_path)
    assert caught.value.facts == ("NVLS=0",)


class Indexer(nn.Module):
    def forward(self, scores_BST: torch.Tensor) -> torch.Tensor:
        chosen: torch.Tensor = torch.ops.day0.topk_tokens(scores_BST, 3)[0]
        return chosen


def test_our_own_indexer_can_be_made_to_choose_otherwise() -> None:
    register_operators()
    model, scores_BST = nn.ModuleDict({"indexer": Indexer()}), torch.arange(10.0).reshape(1, 2, 5)
    scores_BST[0, 1, :3] = float("-inf")
    with planted_in_rank("ranks_other_tokens", 1, 2, model) as planted:
        assert model["indexer"](scores_BST).tolist() == [[[4, 3, 1], [4, 3, -1]]]
        torch.ops.day0.topk_tokens(scores_BST, 3)
    assert planted.calls == 1, "outside of an indexer nothing changes"
    assert model["indexer"](scores_BST).tolist() == [[[4, 3, 2], [4, 3, -1]]]
