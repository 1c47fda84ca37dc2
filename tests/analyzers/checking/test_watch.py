"""What is seen within a kernel, on the simulated device: trips to the CPU, and what is no such trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.analyzers.checking.watch import Watch, watched, watching
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from tests.registry.locking import implementation


def _watch(run: Callable[..., torch.Tensor]) -> tuple[Watch, str]:
    device = open_torch_device(load_profile("null"))
    x = torch.randn(4, 6).to(device)
    watch = Watch(device=device)
    (one,) = watched([implementation("aten::silu", run)])
    kernel: Callable[..., Any] = one.run
    with watching(watch), torch.no_grad():
        result = kernel(x)
    return watch, watch.went_to_cpu([result])


AWAY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the whole operator": lambda x: torch.nn.functional.silu(x.cpu()).to(x.device),
    "a part of it": lambda x: x * torch.sigmoid(x.cpu()).to(x.device),
    "into a buffer of its own": lambda x: torch.empty_like(x).copy_(torch.sigmoid(x.to("cpu"))),
    "outside of torch": lambda x: torch.from_numpy(x.cpu().numpy() * 2.0).to(x.device),
    "and on from there": lambda x: (x.cpu() + 1).exp().to(x.device) * 2.0,
}
AT_HOME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all on the device": lambda x: x * torch.sigmoid(x),
    "a value is read": lambda x: x * float(x.sum().item()),
    "a shape is read": lambda x: x[: int(torch.tensor([2, 3]).max())].clone(),
    "offsets are made on the host": lambda x: x.index_select(
        0, torch.tensor([0, 2, 3]).cumsum(0).clamp(max=3).to(x.device)
    ),
    "counts are read and offsets come back": lambda x: x + (x > 0).sum(0).cpu().cumsum(0).to(x.device).to(x.dtype) * 0,
    "a table is moved": lambda x: x * torch.linspace(0, 1, 6).to(x.device),
}


@pytest.mark.parametrize("name", AWAY)
def test_a_trip_to_the_cpu_is_seen(name: str) -> None:
    _, said = _watch(AWAY[name])
    assert "to the CPU" in said


@pytest.mark.parametrize("name", AT_HOME)
def test_work_on_the_device_and_planning_on_the_host_are_no_such_trip(name: str) -> None:
    _, said = _watch(AT_HOME[name])
    assert said == ""


def test_buffers_are_fenced_and_hold_poison() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 6, device=x.device, dtype=x.dtype)
        assert bool(torch.isnan(out).all())
        assert out.is_contiguous()
        counts = x.new_empty((3,), dtype=torch.int64)
        assert counts.tolist() == [torch.iinfo(torch.int64).max] * 3
        return out.copy_(x)

    watch, _ = _watch(kernel)
    assert len(watch.fences) == 2
    assert watch.written_beside() == ""


@pytest.mark.parametrize("shift", [-2, 2])
def test_writes_beside_a_buffer_are_seen_on_both_sides(shift: int) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.as_strided(out, (24,), (1,), out.storage_offset() + shift).copy_(x.reshape(-1))
        return out

    watch, _ = _watch(kernel)
    side = "before" if shift < 0 else "after"
    assert watch.written_beside() == f"2 elements {side} a buffer of 24 elements of float32 were written"


def test_a_kernel_that_torch_compiles_is_compiled_under_watch_too() -> None:
    counted = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        counted.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x * torch.sigmoid(x), backend=backend)
    (one,) = watched([implementation("aten::silu", lambda x: compiled(x))])
    with watching(Watch(device=torch.device("cpu"))), torch.no_grad():
        one.run(torch.randn(4, 6))
    assert counted


def test_nothing_is_watched_unasked() -> None:
    (one,) = watched([implementation("aten::silu", lambda x: torch.empty_like(x).fill_(1.0))])
    kernel: Callable[..., Any] = one.run
    assert kernel(torch.zeros(3)).untyped_storage().nbytes() == 12
