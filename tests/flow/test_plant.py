"""Faults planted from the command line: caught, named, and never taken for a run on a right device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import FEW_LAYERS, Day0, only_traced_calls, run_day0

PLANTED = {
    "matmul_coarse_inputs": "aten::mm",
    "gate_bound_is_a_clamp": "day0::kda_gate",
    "selection_by_recency": "day0::topk_tokens",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace of the toy, ready for the check on the device that lacks nothing."""
    cwd = tmp_path_factory.mktemp("plant")
    for command in (f"trace toy {FEW_LAYERS} --phase prefill=12", "inventory --device null", "register"):
        done = run_day0(*command.split(), "--run", "r", cwd=cwd)
        assert done.returncode == 0, done.stderr
    only_traced_calls(cwd / "r")
    return cwd / "r"


def _record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "numerics.json").read_text())
    return record


def test_three_planted_faults_are_caught_and_their_operators_named(folder: Path) -> None:
    flags = [word for name in PLANTED for word in ("--plant", name)]
    done = run_day0("check", "--run", folder, *flags, cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"planted: {', '.join(PLANTED)}" in done.stdout
    cases = _record(folder)["body"]["cases"]
    failed = {case["op"] for case in cases if case["status"] == "fail"}
    derived = {f"{one.partition('.')[0]}.out" for one in PLANTED.values()}  # the same kernels with a result given
    assert set(PLANTED.values()) <= failed
    assert {case["status"] for case in cases} <= {"pass", "fail", "skipped"}, "a wrong kernel runs: it is judged"
    assert failed - {*PLANTED.values()} - derived == set(), "what they do not act on is right"
    assert "✗ aten::mm" in done.stdout


SMALL = """\
import torch

class Small(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x).cumsum(0)

def make():
    return Small(), (torch.ones(4, 8),)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A run folder of two operators, ready for the check on the device that lacks nothing."""
    (tmp_path / "small.py").write_text(SMALL)
    for command in ("trace py:small.py:make", "inventory --device null", "register"):
        done = run_day0(*command.split(), "--run", "r", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    only_traced_calls(tmp_path / "r")
    return tmp_path / "r"


def test_a_planted_run_says_so_and_goes_stale_with_the_plant(small: Path) -> None:
    folder = small
    cwd = folder.parent
    assert run_day0("check", "--run", folder, "--plant", "cumprod_missing", cwd=cwd).returncode == 0
    planted = _record(folder)
    assert planted["environment"]["planted"] == "cumprod_missing (its operators were never called)"
    again = run_day0("check", "--run", folder, "--plant", "cumprod_missing", cwd=cwd)
    assert "kept: its inputs are unchanged" in again.stdout
    assert "planted: cumprod_missing" in again.stdout
    run_day0("report", "--run", folder, cwd=cwd)
    assert "faults planted in check" in (folder / "report" / "report.md").read_text()
    status = run_day0("status", "--run", folder, cwd=cwd)
    assert "changed since: planted" in status.stdout
    other = run_day0("check", "--run", folder, "--plant", "falls_back_silently", cwd=cwd)
    assert "changed since: planted" in other.stdout
    assert other.returncode == 1, "cases that passed with another plant are not kept"
    away = {(case["status"], case["rule"]) for case in _record(folder)["body"]["cases"] if case["status"] != "pass"}
    assert ("fell_back", "ran") in away, "a device that goes to the CPU in silence does not pass"
    real = run_day0("check", "--run", folder, cwd=cwd)
    assert real.returncode == 0
    assert "changed since: planted" in real.stdout
    assert "planted" not in _record(folder)["environment"]
    assert "planted" not in _record(folder)["inputs"]


def test_a_fault_planted_in_the_canary_leaves_the_check_alone(folder: Path) -> None:
    assert run_day0("check", "--run", folder, cwd=folder).returncode == 0
    before = (folder / "numerics.json").stat().st_mtime_ns
    done = run_day0("canary", "--run", folder, "--plant", "half_as_much_again", cwd=folder)
    assert done.returncode == 1
    assert "✗ one_op" in done.stdout
    assert "first to go wrong: aten::mm (native)" in done.stdout
    assert "next: day0 repro " in done.stdout
    assert (folder / "numerics.json").stat().st_mtime_ns == before
    assert json.loads((folder / "canary.json").read_text())["environment"]["planted"] == "half_as_much_again"


def test_an_unknown_fault_and_a_real_device_are_refused_before_anything_runs(day0: Day0, folder: Path) -> None:
    done = day0("run", "toy-on-sim", "--plant", "nibbles_swaped", "--run", "other")
    assert done.returncode == 2
    assert "error: fault 'nibbles_swaped': there is no such planted fault" in done.stderr
    assert "did you mean nibbles_swapped" in done.stderr
    on_cpu = day0("run", "toy-on-sim", "--device", "cpu", "--plant", "all_nan", "--run", "other")
    assert on_cpu.returncode == 2
    assert "faults are planted on the simulated device" in on_cpu.stderr


def test_the_list_of_faults(day0: Day0) -> None:
    rows = json.loads(day0("device", "faults", "--json").stdout)
    assert sum(row["is_fault"] for row in rows) >= 60
    assert {"name", "family", "operators", "is_fault", "does", "source"} == set(rows[0])
    text = day0("device", "faults").stdout
    assert "rope_other_pairing: " in text
    assert "topk_ties_other_way (legitimate): " in text
