"""A regression planted between two runs is named by `day0 diff`, exit code 1; without one it is 0."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.flow.conftest import Day0, only_traced_calls, run_day0

MODEL = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 8))

    def forward(self, x):
        return torch.mm(x, self.weight).relu()


def block():
    return Block(), (torch.randn(4, 16),)
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two operators with a check of few cases."""
    cwd = tmp_path_factory.mktemp("regression")
    (cwd / "model.py").write_text(MODEL)
    for command in ("trace py:model.py:block --dtype float32", "inventory --device null", "register"):
        assert run_day0(*command.split(), "--run", "r", cwd=cwd).returncode == 0
    only_traced_calls(cwd / "r")
    assert run_day0("check", "--run", "r", cwd=cwd).returncode == 0
    return cwd / "r"


def test_a_planted_fault_is_a_regression(checked: Path, tmp_path: Path) -> None:
    shutil.copytree(checked, tmp_path / "now")
    shutil.copy(checked.parent / "model.py", tmp_path)
    done = run_day0("check", "--run", "now", "--plant", "matmul_coarse_inputs", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    done = run_day0("diff", checked, "now", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "worse newly failing" in done.stdout
    assert "aten::mm" in done.stdout
    assert "careful: planted none → matmul_coarse_inputs" in done.stdout
    assert run_day0("diff", "now", checked, cwd=tmp_path).returncode == 0, "a repair is no regression"


def test_the_same_again_is_none(checked: Path, tmp_path: Path) -> None:
    shutil.copytree(checked, tmp_path / "now")
    shutil.copy(checked.parent / "model.py", tmp_path)
    assert run_day0("check", "--run", "now", "--force", cwd=tmp_path).returncode == 0
    done = run_day0("diff", checked, "now", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("no difference")


PLAYBOOK = """\
schema: day0.playbook/1
name: small
model: {source: toy, dtype: float32}
workload: {phases: {prefill: {tokens: 8}, decode: {tokens: 1, context: 8}}}
device: sim
register: {namespace: kimi/k3.1}
check: {regimes: [ordinary], derived: false, level: ops}
canary: {stages: {load: {}, all_layers: {}}}
"""

KERNEL = """\
import torch
from day0.implementation import Implementation


def silu(x):
    for _ in range(%d):
        x = x + 0.0
    return x * torch.sigmoid(x)


IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="mine", version="1.%d", kind="kernel",
        run=silu, why="x times its sigmoid", devices=("sim",),
    ),
)
"""


@pytest.mark.slow
def test_a_slower_kernel_is_a_regression(day0: Day0, tmp_path: Path) -> None:
    """Its cheap cousin is in tests/analyzers/test_diff_figures.py."""
    (tmp_path / "small.yaml").write_text(PLAYBOOK)
    for name, rounds in (("fast", 0), ("slow", 8), ("again", 0)):
        (tmp_path / f"{name}.py").write_text(KERNEL % (rounds, rounds))
        assert day0("run", "small.yaml", "--run", name, "--with", f"{name}.py").returncode == 0
    done = day0("diff", "fast", "slow")
    assert done.returncode == 1, done.stdout
    assert "worse slower (1)" in done.stdout
    assert "aten::silu@1 base:mine==1.0 → aten::silu@1 base:mine==1.8" in done.stdout
    assert day0("diff", "fast", "again").returncode == 0
