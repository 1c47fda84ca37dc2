"""Every setting that a kernel may change is seen, put back and named; nothing else is."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.checking.state import put_back, snapshot

CPU = torch.device("cpu")


class _Mode(TorchDispatchMode):
    pass


CHANGES: dict[str, Callable[[], object]] = {
    "default dtype (torch.float32 → torch.float64)": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch._C._set_grad_enabled(not torch.is_grad_enabled()),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "float32 matmul precision (highest → medium)": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "subnormals": lambda: torch.set_flush_denormal(True),
    "dispatch modes": lambda: _Mode().__enter__(),  # type: ignore[no-untyped-call]  # torch's own
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype on cpu": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "random numbers of the CPU": lambda: torch.rand(1),
    "random numbers of Python": random.random,
    "torch.backends.cudnn.benchmark": lambda: torch._C._set_cudnn_benchmark(True),
    "signal handlers": lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
    "working folder": lambda: os.chdir("/"),
    "sys.stdout": lambda: setattr(sys, "stdout", None),
    "garbage collection": gc.disable,
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_put_back(name: str) -> None:
    before = snapshot(CPU)
    CHANGES[name]()
    changed = put_back(before, CPU, draws=False)
    assert len(changed) == 1
    assert changed[0].startswith(name)
    assert put_back(before, CPU, draws=False) == ()


def test_a_random_operator_may_draw_and_change_nothing_else() -> None:
    before = snapshot(CPU)
    torch.rand(1)
    assert put_back(before, CPU, draws=True) == ()
    torch.rand(1)
    torch.set_default_dtype(torch.float64)
    assert len(put_back(before, CPU, draws=True)) == 1
    assert torch.get_default_dtype() == torch.float32


def test_what_nobody_changes_is_no_change() -> None:
    before = snapshot(CPU)
    (torch.ones(3) @ torch.ones(3)).item()
    assert put_back(before, CPU, draws=False) == ()
