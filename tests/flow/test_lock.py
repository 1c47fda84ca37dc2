"""What keeps a lock as it is, what verifies it, and what of it may be chosen anew: on a small model of our own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.cli import commands
from day0.errors import Day0Error

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x).topk(3).values * 2.0

def make():
    return Small(), (torch.linspace(-1, 1, 32).reshape(4, 8),)
"""

KERNELS = """
import torch
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::OPERATOR", contract=1, id="mine", version="1.0", kind="kernel", run=lambda *args: RUN, why="mine",
        rank=RANK,
    ),
)
"""

Day0 = Callable[..., int]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a run folder that is checked, on the simulated device."""
    cwd = tmp_path_factory.mktemp("lock")
    (cwd / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        _check(cwd / "run")
    return cwd


@pytest.fixture
def folder(checked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder in a copy of that, for one test to change."""
    shutil.copytree(checked, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def _check(run: Path) -> None:
    commands.trace(
        model="py:model.py:make",
        run=run,
        sets=[],
        dtype="float32",
        mode="auto",
        shrink=False,
        batch=1,
        phases=[],
        trust_remote_code=False,
        force=False,
        json=False,
    )
    _stage("inventory", run, device="sim")
    assert _stage("register", run) == 0
    assert _stage("check", run) == 0


def _stage(name: str, run: Path, **options: Any) -> int:
    return commands.stage(name=name, run=run, **{"force": False, "json": False, **options})


def _kernel(folder: Path, operator: str, run: str, *, rank: int = 50) -> Path:
    path = folder.parent / f"{operator}.py"
    path.write_text(KERNELS.replace("OPERATOR", operator).replace("RUN", run).replace("RANK", str(rank)))
    return path


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((folder / "ops.lock").read_text())["body"]["entries"]
    return {entry["operator"]: entry for entry in found}


def test_check_writes_into_the_lock_what_it_verified_and_nothing_is_stale_by_that(folder: Path) -> None:
    entries = _entries(folder)
    assert {name for name, entry in entries.items() if entry["verified"]} == set(entries) != set()
    verified = entries["aten::silu"]["verified"]
    assert verified["device"] == "sim"
    assert set(verified["environment"]) == {"torch", "device"}
    assert verified["source_hash"] == entries["aten::silu"]["source_hash"]
    assert commands.status(run=folder, json=False) == 1, "the canary is still to come"
    assert _stage("canary", folder) == 0
    assert commands.status(run=folder, json=False) == 0


def test_the_canary_refuses_a_lock_without_evidence_and_check_brings_it_back(folder: Path) -> None:
    def without_evidence() -> None:
        document = json.loads((folder / "ops.lock").read_text())
        for entry in document["body"]["entries"]:
            entry["verified"] = None
        from day0.hashing import hash_json

        document["sha256"] = hash_json(document["body"])
        (folder / "ops.lock").write_text(json.dumps(document, indent=1))

    without_evidence()  # as after a kill between the two files
    with pytest.raises(Day0Error, match="entries lack evidence") as caught:
        _stage("canary", folder)
    assert any("aten::silu" in fact and "no numerics report" in fact for fact in caught.value.facts)
    assert _stage("canary", folder, allow_unverified=True) == 0
    assert _stage("check", folder) == 0, "fresh, and it writes the evidence all the same"
    assert _stage("canary", folder) == 0


def test_locked_fails_where_frozen_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "ops.lock").read_text()
    mine = _kernel(folder, "silu", "args[0] * torch.sigmoid(args[0])")
    assert _stage("register", folder, check=True) == 0
    capsys.readouterr()
    assert _stage("register", folder, load=[mine], check=True, json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["current"] is False
    assert "aten::silu" in found["changes"][0]
    assert "base:mine==1.0 now" in found["changes"][0]
    plan = json.loads((folder / "plan.json").read_text())
    plan["register"]["load"] = [str(mine)]
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(Day0Error, match="--locked forbids") as caught:
        _stage("check", folder, locked=True)
    assert "base:mine==1.0 now" in caught.value.facts[0]
    assert _stage("check", folder, frozen=True) == 0
    assert _stage("canary", folder, frozen=True) == 0
    assert (folder / "ops.lock").read_text() == before
    assert _stage("check", folder) == 0, "without either the lock is made anew"
    assert _entries(folder)["aten::silu"]["identity"]["id"] == "mine"


def test_locked_accepts_a_candidate_that_nobody_chose(folder: Path) -> None:
    mine = _kernel(folder, "topk", "torch.sort(args[0], descending=True)", rank=2000)
    plan = json.loads((folder / "plan.json").read_text())
    plan["register"]["load"] = [str(mine)]
    (folder / "plan.json").write_text(json.dumps(plan))
    assert _stage("check", folder, locked=True) == 0


def test_locked_and_frozen_need_a_lock_and_exclude_each_other(folder: Path) -> None:
    with pytest.raises(Day0Error, match="exclude each other"):
        _stage("check", folder, locked=True, frozen=True)
    (folder / "ops.lock").unlink()
    for flag in ("locked", "frozen"):
        with pytest.raises(Day0Error, match=r"no ops\.lock"):
            _stage("check", folder, **{flag: True})


def test_upgrade_chooses_anew_for_one_operator_only(folder: Path) -> None:
    silu = _kernel(folder, "silu", "args[0] * torch.sigmoid(args[0])")
    topk = _kernel(folder, "topk", "torch.sort(args[0], descending=True)")
    assert _stage("register", folder, load=[silu, topk], upgrade=["aten::silu"]) == 0
    entries = _entries(folder)
    assert entries["aten::silu"]["identity"]["id"] == "mine"
    assert entries["aten::topk"]["identity"]["id"] == "stable_sort"
    assert commands.status(run=folder, json=False) == 1
    with pytest.raises(Day0Error, match="neither the lock") as caught:
        _stage("register", folder, upgrade=["aten::topc"])
    assert "aten::topk" in caught.value.hint


def test_an_operator_that_the_device_has_is_replaced_where_the_plan_says_so(folder: Path) -> None:
    assert "aten::mul.Tensor" not in _entries(folder)
    double = _kernel(folder, "mul", "args[0] + args[0]")
    assert _stage("register", folder, load=[double], replace=["aten::mul"]) == 0
    assert _entries(folder)["aten::mul.Tensor"]["identity"]["id"] == "mine"
    assert _stage("check", folder) in (0, 1)
    report = json.loads((folder / "numerics.json").read_text())["body"]
    assert {case["implementation"] for case in report["cases"] if case["op"] == "aten::mul.Tensor"} == {
        "aten::mul@1 base:mine==1.0"
    }
    with pytest.raises(Day0Error, match="the model never calls"):
        _stage("register", folder, replace=["aten::erfinv"])


def test_an_operator_to_replace_that_nothing_replaces_stays_open(folder: Path) -> None:
    assert _stage("register", folder, replace=["aten::mul"]) == 1
    gap = json.loads((folder / "ops.lock").read_text())["body"]["gaps"][0]
    assert gap["operator"] == "aten::mul.Tensor"
    assert "asks to replace" in gap["reason"]
