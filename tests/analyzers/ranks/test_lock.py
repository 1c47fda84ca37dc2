"""What stands in on ranks for operators of day0 that a device has no kernel for.

Shape suffixes: B batch, S queries, T keys.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import pytest
import torch

from day0.analyzers.ranks import worker
from day0.analyzers.ranks.board import RankBoard
from day0.analyzers.ranks.launch import _exception
from day0.analyzers.ranks.lock import implementations_of, lock_of, words_of
from day0.analyzers.ranks.memory import predict_step
from day0.analyzers.ranks.setting import RanksSetting
from day0.analyzers.ranks.worker import _say_again, _Work
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.playbook import ModelPlan, RegisterPlan
from day0.records import Lock, Signature
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators
from day0.registry.receipts import ActiveLock

TOY = ModelPlan(source="toy", set={"kda_heads": 4, "mla_heads": 4, "vision": False}, dtype="bfloat16")
REPLACE = RegisterPlan(replace=("day0::topk_tokens",))


def made(calls: tuple[Signature, ...], device: str, plan: RegisterPlan | None = None) -> Lock | None:
    register_operators()
    plan = plan or RegisterPlan()
    return lock_of(calls, load_profile(device), plan, "model", implementations_of(plan))


def call_of_topk() -> Signature:
    register_operators()
    logits_BST = torch.zeros(1, 1, 8)
    return describe("day0::topk_tokens", (logits_BST, 2), {})


def test_every_operator_of_ours_that_a_rank_calls_gets_one_on_a_device_without_kernels() -> None:
    register_operators()
    found = predict_step(open_model(TOY), 2, 12, torch.device("cuda"))
    lock = made(found.calls, "cuda")
    assert lock is not None
    called = {one.op for one in found.calls}
    assert {"day0::kda_recurrent", "day0::lightning_indexer", "day0::fused_experts"} <= called
    assert {one.operator for one in lock.entries} == called
    (words,) = words_of({1: lock, 2: lock})
    assert words.startswith("registered for this device: day0::attention_residual base:")
    one, two = words_of({1: lock, 2: lock.model_copy(update={"entries": lock.entries[:1]})})
    assert one.startswith("registered for this device, on 1 ranks: ")
    assert two.startswith("registered for this device, on 2 ranks: ")
    # The CPU has the reference of each.
    assert made(found.calls, "cpu") is None
    assert words_of({2: None}) == ()


def test_what_nothing_takes_is_refused_before_a_rank_starts() -> None:
    plan = RegisterPlan(replace=("day0::topk_tokens",), replacements=False)
    with pytest.raises(Day0Error, match=r"day0::topk_tokens: .*nothing that is registered takes"):
        lock_of((call_of_topk(),), load_profile("cpu"), plan, "model", ())


def test_what_was_chosen_runs_in_the_process_of_a_rank(tmp_path: Path) -> None:
    lock = made((call_of_topk(),), "cpu", REPLACE)
    assert lock is not None
    setting = RanksSetting(
        model=TOY, profile=load_profile("cpu"), ranks=1, prompt_tokens=4, new_tokens=1, register_=REPLACE, lock=lock
    )
    board = RankBoard(tmp_path / "board-0")
    work = _Work(folder=tmp_path, setting=setting, number=0, device=torch.device("cpu"), board=board)
    with work._standing_in() as active:
        torch.ops.day0.topk_tokens(torch.randn(1, 1, 8), 2)
        assert isinstance(active, ActiveLock)
        assert [tally.calls() for tally in active.tallies.values()] == [1]


def test_who_lost_another_rank_ends_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # torchrun names one rank that failed: both within one of its looks, and it might be the wrong one.
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    for error in (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1"), ValueError("of its own")):
        with pytest.raises(type(error)), worker._Telling():
            raise error
    assert waited == [worker.OTHERS_S]


def test_a_long_message_does_not_hide_what_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise NotImplementedError(
            "Could not run 'day0::x'\n" + "\n".join(f"Key{number}: kernel" for number in range(40))
        )
    except NotImplementedError as error:
        traceback.print_exception(error)
        _say_again(error)
    lines = tuple(capsys.readouterr().err.splitlines()[-12:])
    assert _exception(lines) == "NotImplementedError: Could not run 'day0::x'"
