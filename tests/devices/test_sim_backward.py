"""Errors in a backward pass on the simulated device come back as errors; they do not end the process."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

OpenWith = Callable[..., Any]


def _leaf() -> torch.Tensor:
    return torch.ones(3, 8, device="sim", requires_grad=True)


def test_kernel_missing_in_backward_is_named(open_with: OpenWith) -> None:
    open_with(lacks={"aten::native_layer_norm_backward": {}})
    x = _leaf()
    with pytest.raises(NotImplementedError, match="native_layer_norm_backward"):
        torch.nn.functional.layer_norm(x, (8,)).sum().backward()
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [2.0], "the device goes on"


def test_dtype_missing_in_backward_is_named(open_with: OpenWith) -> None:
    open_with(lacks={"aten::sigmoid_backward": {"dtypes": ("float32",)}})
    x = _leaf()
    with pytest.raises(NotImplementedError, match="sigmoid_backward"):
        torch.autograd.grad(x.sigmoid().sum(), x)


@pytest.mark.usefixtures("null")
def test_error_of_a_hook_comes_back_also_in_a_thread() -> None:
    seen: list[str] = []

    def fail(grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("the hook says no")

    def run() -> None:
        y = _leaf() * 2
        y.register_hook(fail)
        with pytest.raises(ValueError, match="the hook says no"):
            y.sum().backward()
        seen.append("caught")

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == ["caught", "caught"]


def test_memory_that_runs_out_in_backward(open_with: OpenWith) -> None:
    open_with(memory_gib=5 / 1024)
    x = torch.ones(1 << 19, device="sim", requires_grad=True)  # 2 MiB of 5
    y = x.exp().sum()
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        y.backward()


def test_backward_before_the_device_was_opened_is_told_from_another_device() -> None:
    """The engine counts devices once; a process of its own, since this one has opened the device."""
    script = """
import torch
torch.ones(2, requires_grad=True).sum().backward()
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
open_sim(load_profile("null"))
x = torch.ones(2, device="sim", requires_grad=True)
x.sum().backward()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "NotImplementedError: torch ran a backward pass before the sim device was opened" in ended.stderr
