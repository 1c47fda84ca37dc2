"""A model whose forward runs a backward pass, through all stages in one process."""

from __future__ import annotations

import re
from pathlib import Path

from tests.flow.conftest import run_day0

MODEL = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def part(x, weight):
    return torch.rsqrt(nn.functional.linear(x, weight).square() + 1.0)


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        with torch.enable_grad():
            weight = self.linear.weight.detach().requires_grad_(True)
            loss = checkpoint(part, x, weight, use_reentrant=False).mean()
            (gradient,) = torch.autograd.grad(loss, (weight,))
        return loss.detach(), gradient


def make():
    torch.manual_seed(0)
    return Step(), (torch.randn(3, 8),)
"""

PLAYBOOK = """\
schema: day0.playbook/1
name: step
model: {source: "py:step.py:make", dtype: float32}
trace: real
device: sim
check: {derived: false, regimes: [ordinary], level: ops}
canary:
  stages: {load: {}, one_op: {}, forward: {}}
"""


def test_a_trace_with_a_backward_pass_leaves_the_device_able_to_run_one(tmp_path: Path) -> None:
    # "torch ran a backward pass before the sim device was opened in this process": the trace had, on the CPU. And what
    # checkpointing runs again in the backward pass is served by the lock too: sim has no rsqrt of its own.
    (tmp_path / "step.py").write_text(MODEL)
    (tmp_path / "step.yaml").write_text(PLAYBOOK)
    done = run_day0("run", "step.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"forward: worst_error_ratio [\d.e-]+ <= 3, unequal_outputs 0 == 0, outputs 2 >= 1", done.stdout)
