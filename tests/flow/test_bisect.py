"""`day0 check bisect`: which locked implementations make a check of the user's own fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flow.conftest import run_day0

CHECK = """
import json, sys
lock, seed, rule = sys.argv[1], int(sys.argv[2]), sys.argv[3]
on = {e["operator"] for e in json.load(open(lock))["body"]["entries"] if e["kind"] != "cpu_fallback"}
one, two = "day0::hadamard" in on, "day0::short_conv" in on
bad = {"one": one, "both": one and two, "never": False, "always": True, "lucky": one and seed == 1}[rule]
sys.exit(1 if bad else 0)
"""


MODEL = """
import torch
from torch import nn

from day0.reference_ops.torch_ops import register_operators


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps, self.scale = nn.Parameter(torch.ones(8, 4)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = torch.ops.day0.rms_norm(x, self.scale, 1e-6)
        x = torch.ops.day0.hadamard(torch.ops.day0.short_conv(x, self.taps)[0])
        return torch.ops.day0.topk_tokens(x, 3)


def make():
    register_operators()
    return Small().requires_grad_(False), (torch.ones(1, 6, 8),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("bisect")
    (cwd / "model.py").write_text(MODEL)
    for command in ("trace py:model.py:make", "inventory --device null", "register"):
        done = run_day0(*command.split(), "--run", "r", cwd=cwd)
        assert done.returncode == 0, done.stderr
    (cwd / "check.py").write_text(CHECK)
    return cwd


def bisected(folder: Path, rule: str, *more: str) -> tuple[int, dict[str, Any]]:
    command = f"{sys.executable} check.py {{lock}} {{seed}} {rule}"
    done = run_day0("check", "bisect", "--run", "r", "--check", command, "--json", *more, cwd=folder)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_one_entry_is_named_and_samples_agree(folder: Path) -> None:
    before = (folder / "r" / "ops.lock").read_bytes()
    code, found = bisected(folder, "one")
    assert (code, found["verdict"]) == (0, "agreed")
    [cause] = found["causes"]
    assert cause["samples"] == 3
    assert [name.startswith("day0::hadamard@") for name in cause["together"]] == [True]
    assert (folder / "r" / "ops.lock").read_bytes() == before, "the run itself is left alone"


def test_two_that_are_only_bad_together(folder: Path) -> None:
    code, found = bisected(folder, "both", "--samples", "2")
    assert code == 0
    names = [name.partition("@")[0] for name in found["causes"][0]["together"]]
    assert names == ["day0::hadamard", "day0::short_conv"]


def test_no_failure_and_a_failure_that_is_none_of_theirs(folder: Path) -> None:
    code, found = bisected(folder, "never", "--samples", "1")
    assert (code, found["verdict"], found["reason"]) == (0, "not_found", "the check does not fail")
    code, found = bisected(folder, "always", "--samples", "1")
    assert (code, found["verdict"]) == (1, "not_found")
    assert "it fails with all of them off" in found["reason"]


def test_one_sample_alone_is_no_proof(folder: Path) -> None:
    code, found = bisected(folder, "lucky")
    assert (code, found["verdict"]) == (1, "suspected")
    assert [one["outcome"] for one in found["samples"]] == ["passes", "found", "passes"]


def test_a_command_that_cannot_run_or_ignores_the_lock_is_refused(folder: Path) -> None:
    done = run_day0("check", "bisect", "--run", "r", "--check", "no-such-program {lock}", cwd=folder)
    assert done.returncode == 2 and "the shell cannot run it (exit code 127)" in done.stderr
    done = run_day0("check", "bisect", "--run", "r", "--check", "true", cwd=folder)
    assert done.returncode == 2 and "takes neither {run} nor {lock}" in done.stderr


def test_a_command_that_hangs_is_ended_and_counts_as_unknown(folder: Path) -> None:
    done = run_day0(
        "check", "bisect", "--run", "r", "--check", "sleep 60; test {lock}", "--samples", "1", "--timeout", "0.2",
        "--json", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 1
    assert json.loads(done.stdout)["samples"][0]["outcome"] == "unknown"
