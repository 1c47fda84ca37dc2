"""Memory on `sim` is counted by storage, given back, and runs out."""

import gc
from collections.abc import Callable

import pytest
import torch

from day0.devices.sim.state import STATE

KIB = 1 << 10
OpenWith = Callable[..., object]


@pytest.fixture
def used() -> Callable[[], int]:
    """Return a function that says how many bytes more are in use than now."""
    gc.collect()
    before = STATE.allocated_bytes
    return lambda: STATE.allocated_bytes - before


@pytest.mark.usefixtures("null")
def test_tensor_counts_until_the_last_view_is_gone(used: Callable[[], int]) -> None:
    x = torch.zeros(KIB, device="sim")
    assert used() == 4 * KIB
    view = x[1:3]
    twin = x.detach()
    assert used() == 4 * KIB
    del x
    assert used() == 4 * KIB
    del view, twin
    assert used() == 0


@pytest.mark.usefixtures("null")
def test_results_and_copies_count(used: Callable[[], int]) -> None:
    x = torch.zeros(KIB, device="sim")
    y = x + 1
    y.add_(1)
    half = y.half()
    assert used() == (4 + 4 + 2) * KIB
    del x, y, half
    assert used() == 0


@pytest.mark.usefixtures("null")
def test_resizing_counts_the_new_size(used: Callable[[], int]) -> None:
    x = torch.empty(0, device="sim")
    x.resize_(KIB)
    assert used() == 4 * KIB
    torch.add(torch.zeros(2 * KIB, device="sim"), 1, out=x.resize_(0))
    assert used() == 8 * KIB
    del x
    assert used() == 0


@pytest.mark.usefixtures("null")
def test_host_tensors_do_not_count(used: Callable[[], int]) -> None:
    host = torch.zeros(KIB, device="sim").cpu()
    assert used() == 0
    del host
    assert used() == 0


@pytest.mark.usefixtures("null")
def test_module_functions_report(used: Callable[[], int]) -> None:
    sim = torch.sim  # type: ignore[attr-defined]  # registered while running
    sim.reset_peak_memory_stats()
    start = sim.memory_allocated()
    x = torch.zeros(KIB, device="sim")
    del x
    assert used() == 0
    assert sim.memory_allocated() == start
    assert sim.max_memory_allocated() == start + 4 * KIB
    assert sim.memory_stats()["allocated_bytes.all.peak"] == start + 4 * KIB
    free, total = sim.mem_get_info()
    assert total == 64 << 30
    assert free == total - start


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.zeros(KIB, device="sim"),
        lambda: torch.zeros(KIB).to("sim"),
        lambda: torch.zeros(1, device="sim").expand(KIB).clone(),
        lambda: torch.zeros(1, device="sim").expand(KIB) + torch.zeros(1, device="sim"),
        lambda: torch.empty(0, device="sim").resize_(KIB),
    ],
)
def test_memory_runs_out(open_with: OpenWith, used: Callable[[], int], ask: Callable[[], torch.Tensor]) -> None:
    limit = STATE.allocated_bytes + 2 * KIB
    open_with(memory_gib=limit / 2**30)
    with pytest.raises(torch.OutOfMemoryError, match=r"sim out of memory\. Tried to allocate 4\.00 KiB.*is free"):
        ask()
    gc.collect()
    assert used() == 0, "what was refused must not count"
    assert torch.zeros(2, device="sim").tolist() == [0.0, 0.0]


def test_refusal_comes_before_the_host_is_asked(open_with: OpenWith) -> None:
    open_with(memory_gib=1)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4096\.00 GiB.*capacity of 1\.00 GiB"):
        torch.empty(1 << 40, device="sim")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty_strided((1 << 40, 2), (2, 1), device="sim", dtype=torch.float16)


def test_tensor_that_cannot_grow_stays_as_it_is(open_with: OpenWith) -> None:
    open_with(memory_gib=1 / 1024)
    x = torch.ones(100, device="sim")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        x.resize_(1 << 20)
    assert (x + 1).shape == (100,)
    assert x.sum().item() == 100


def test_results_that_the_host_cannot_hold_are_out_of_the_devices_memory(open_with: OpenWith) -> None:
    open_with(memory_gib=1 / 1024)
    x = torch.ones(1 << 10, device="sim")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.arange(10**15, device="sim")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        x.repeat_interleave(10**12)
