"""Run the program as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.warm import run_warm

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"

FEW_LAYERS = "--set num_hidden_layers=2 --set mla_layers=[2] --set vision=false"
"""One layer of each kind of the toy: fewer calls, and every operator of its text."""

Done = subprocess.CompletedProcess[str]
Day0 = Callable[..., Done]


def run_day0(*arguments: object, cwd: Path, cold: bool = False) -> Done:
    """Run day0 in a process of its own with a plain wide terminal; a cold one is a whole `python -m day0`."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "400", "OMP_NUM_THREADS": "1"}
    if not cold:
        return run_warm([str(argument) for argument in arguments], cwd=cwd, env=environment)
    command = [sys.executable, "-m", "day0", *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that ended and that nobody asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def day0(tmp_path: Path) -> Day0:
    return lambda *arguments: run_day0(*arguments, cwd=tmp_path)


def only_traced_calls(folder: Path, *regimes: str, level: str = "ops") -> None:
    """Let the check of a run folder have few cases: each traced call with ordinary values, or these, and no whole model."""
    path = folder / "plan.json"
    plan = json.loads(path.read_text())
    plan["check"] |= {"regimes": list(regimes or ("ordinary",)), "derived": False, "level": level}
    path.write_text(json.dumps(plan))


def short_playbook(folder: Path, *more: str) -> Path:
    """Write the toy's playbook in short.

    Two phases, beyond the sparse top-k; ordinary values and no whole model in the check; and of the canary the stages
    that every kernel meets, and those named.
    """
    plan = yaml.safe_load((PLAYBOOKS / "toy-on-sim.yaml").read_text())
    plan["workload"]["phases"] = {"prefill": {"tokens": 12}, "decode": {"tokens": 1, "context": 12}}
    plan["check"] |= {"regimes": ["ordinary"], "level": "ops"}
    stages = plan["canary"]["stages"]
    plan["canary"]["stages"] = {name: stages[name] for name in ("load", "one_op", "one_layer", *more)}
    path = folder / "toy-on-sim.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path
