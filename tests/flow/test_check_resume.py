"""A check that is killed at any moment goes on where it was: no case lost, none judged twice, the same report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from day0.analyzers.checking.leftovers import children_of
from tests.flow.conftest import FEW_LAYERS, is_running, only_traced_calls, run_day0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace of the toy, checked without disturbance."""
    cwd = tmp_path_factory.mktemp("resume")
    for command in (f"trace toy {FEW_LAYERS} --phase prefill=12", "inventory --device sim", "register", "check"):
        if command == "check":
            only_traced_calls(cwd / "r")
        done = run_day0(*command.split(), "--run", "r", cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
    return cwd / "r"


def _body(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "numerics.json").read_text())["body"]
    return body


def _lines(folder: Path) -> list[str]:
    journal = folder / "numerics.cases.jsonl"
    return journal.read_text().split("\n")[1:-1] if journal.exists() else []


def _start(folder: Path, cases: int) -> subprocess.Popen[bytes]:
    """Start a check in a process of its own and return it as soon as so many cases are in its journal."""
    command = [sys.executable, "-m", "day0", "check", "--run", str(folder), "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    while process.poll() is None and len(_lines(folder)) < cases:
        time.sleep(0.005)
    return process


@pytest.mark.parametrize(
    "cases", [40, pytest.param(1, marks=pytest.mark.slow), pytest.param(120, marks=pytest.mark.slow)]
)
def test_killed_and_resumed(whole: Path, tmp_path: Path, cases: int) -> None:
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    (folder / "numerics.json").unlink()
    (folder / "numerics.cases.jsonl").unlink()
    process = _start(folder, cases)
    workers = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "numerics.json").exists()
    until = time.monotonic() + 60.0
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < until, "the workers went on without their parent"
        time.sleep(0.05)
    finished = _lines(folder)
    assert len(finished) >= cases
    done = run_day0("check", "--run", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _lines(folder)[: len(finished)] == finished, "what was finished is not judged again"
    keys = [json.loads(line)["case"] for line in _lines(folder)]
    assert len(keys) == len(set(keys)), "none is judged twice"
    assert _body(folder) == _body(whole), "no case is lost, and the report is the same"
    assert not (folder / ".check").exists(), "what the killed run left"


def test_interrupted_by_the_user(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    (folder / "numerics.json").unlink()
    (folder / "numerics.cases.jsonl").unlink()
    process = _start(folder, 20)
    workers = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert len(_lines(folder)) >= 20
    assert not any(is_running(pid) for pid in workers)
    assert not (folder / ".check").exists()
