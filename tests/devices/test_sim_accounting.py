"""The simulated device keeps accounts: memory, transfers, waits, fallbacks, calls and simulated time."""

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.devices.open import device_counts, fallback_calls
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.devices.sim.state import STATE, SimCounters
from day0.reference_ops.load import load_operators
from day0.reference_ops.torch_ops import register_operators

KIB, MIB = 1 << 10, 1 << 20
OpenWith = Callable[..., Any]


def _sim() -> Any:
    return torch.sim  # type: ignore[attr-defined]  # registered while running


def _counted(work: Callable[[], object]) -> SimCounters:
    _sim().reset_counters()
    work()
    found: SimCounters = _sim().counters()
    return found


# ---------------------------------------------------------------------------------------------- memory


@pytest.mark.usefixtures("null")
def test_reserved_memory_stays_until_it_is_given_back() -> None:
    sim = _sim()
    gc.collect()
    sim.empty_cache()
    sim.reset_peak_memory_stats()
    start = sim.memory_allocated()
    assert sim.memory_reserved() == start
    x = torch.zeros(KIB, device="sim")
    del x
    assert sim.memory_allocated() == start
    assert sim.memory_reserved() == start + 4 * KIB
    y = torch.zeros(KIB // 2, device="sim")
    assert sim.memory_reserved() == start + 4 * KIB, "what is reserved is used first"
    sim.empty_cache()
    assert sim.memory_reserved() == start + 2 * KIB
    assert sim.max_memory_reserved() == start + 4 * KIB
    del y
    sim.empty_cache()
    sim.reset_peak_memory_stats()
    assert sim.max_memory_reserved() == sim.max_memory_allocated() == start
    assert sim.memory_stats()["reserved_bytes.all.peak"] == start


def test_out_of_memory_is_torchs_error_with_figures(open_with: OpenWith) -> None:
    gc.collect()
    open_with(memory_gib=(STATE.allocated_bytes + 3 * MIB) / 2**30)
    x = torch.zeros(MIB // 4, device="sim")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.cat([x, x, x])
    told = str(caught.value)
    assert "Tried to allocate 3.00 MiB" in told
    assert "2.00 MiB is free" in told
    assert "is allocated" in told
    assert "at its peak" in told
    assert torch.add(x, 1)[0].item() == 1, "the device goes on after it"


# ----------------------------------------------------------------------------------- transfers and waits


@pytest.mark.usefixtures("null")
def test_transfers_count_by_direction() -> None:
    host, x = torch.zeros(KIB), torch.zeros(KIB, device="sim")
    up = _counted(lambda: host.to("sim"))
    assert (up.to_device, up.to_device_bytes, up.to_host, up.to_host_bytes) == (1, 4 * KIB, 0, 0)
    assert up.host_syncs == 0
    down = _counted(lambda: x.cpu())
    assert (down.to_device, down.to_host, down.to_host_bytes, down.host_syncs) == (0, 1, 4 * KIB, 1)
    both = _counted(lambda: (x.copy_(host), host.copy_(x)))
    assert (both.to_device, both.to_host) == (1, 1)
    assert _counted(lambda: x.half()).to_device == 0
    assert _counted(lambda: x.to("sim")).to_device == 0


@pytest.mark.usefixtures("null")
@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x[torch.tensor([0, 1])], 0),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x + 1, 0),
        (lambda x: _sim().synchronize(), 1),
    ],
)
def test_waits_count(work: Callable[[torch.Tensor], object], waits: int) -> None:
    x = torch.ones(4, device="sim")
    assert _counted(lambda: work(x)).host_syncs == waits


# ----------------------------------------------------------------------------------------------- fallbacks


def test_fallbacks_count_with_bytes_in_all_namespaces(open_with: OpenWith) -> None:
    library = torch.library.Library("day0_test_accounts", "DEF")
    library.define("twice(Tensor self) -> Tensor")
    library.impl("twice", lambda self: self + self, "CPU")
    try:
        open_with(lacks={"aten::topk": {}}, fallback="cpu")
        x = torch.ones(KIB, device="sim")
        found = _counted(lambda: (torch.ops.day0_test_accounts.twice(x), torch.topk(x, 2)))
    finally:
        library._destroy()
    assert found.fallbacks == {"day0_test_accounts::twice": 1, "aten::topk.values": 1}
    assert found.fallback_bytes["day0_test_accounts::twice"] == 2 * 4 * KIB
    assert found.fallback_bytes["aten::topk.values"] >= 4 * KIB + 2 * (4 + 8)
    assert found.to_device_bytes + found.to_host_bytes == sum(found.fallback_bytes.values())


# ---------------------------------------------------------------------------------------- time, by operator


def test_time_is_a_roofline_with_launches(open_with: OpenWith) -> None:
    open_with(bandwidth_gb_s=1.0, tflops={"float32": 1e-3}, launch_us=5.0)
    x = torch.ones(KIB, KIB, device="sim")
    moved = _counted(lambda: x + x)
    assert moved.calls == {"aten::add.Tensor": 1}
    assert moved.moved_bytes == 3 * 4 * MIB
    assert moved.seconds["aten::add.Tensor"] == pytest.approx(3 * 4 * MIB / 1e9 + 5e-6)
    small = torch.ones(256, 256, device="sim")
    product = _counted(lambda: small @ small)
    assert product.flops == 2 * 256**3
    assert product.seconds["aten::mm"] == pytest.approx(2 * 256**3 / 1e9 + 5e-6), "here computing takes longer"
    assert product.kernel_seconds == pytest.approx(sum(product.seconds.values()))


def test_rate_follows_the_dtype(open_with: OpenWith) -> None:
    open_with(bandwidth_gb_s=1e6, tflops={"float32": 1.0, "bfloat16": 4.0}, launch_us=0.0)
    x = torch.ones(128, 128, device="sim")
    half = x.bfloat16()
    slow, fast = _counted(lambda: x @ x), _counted(lambda: half @ half)
    assert slow.kernel_seconds == pytest.approx(4 * fast.kernel_seconds)


@pytest.mark.usefixtures("null")
@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.view(-1),
        lambda x: x.t(),
        lambda x: x[1:],
        lambda x: x.detach(),
        lambda x: x.expand(3, 4, 4),
        lambda x: torch.empty(4, device="sim"),
    ],
)
def test_views_and_empty_tensors_cost_nothing(work: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(4, 4, device="sim")
    found = _counted(lambda: work(x))
    assert found.calls
    assert found.total_seconds == 0


@pytest.mark.usefixtures("null")
def test_in_place_and_out_count_as_often_as_they_move() -> None:
    x, y = torch.ones(KIB, device="sim"), torch.empty(KIB, device="sim")
    assert _counted(lambda: x.add_(x)).moved_bytes == 3 * 4 * KIB
    assert _counted(lambda: torch.neg(x, out=y)).moved_bytes == 2 * 4 * KIB


def test_waits_and_transfers_take_their_time(open_with: OpenWith) -> None:
    open_with(sync_us=30.0, link_gb_s=1.0, launch_us=0.0)
    x = torch.ones(MIB, device="sim")
    found = _counted(lambda: x.cpu())
    assert found.sync_seconds == pytest.approx(30e-6)
    assert found.transfer_seconds == pytest.approx(4 * MIB / 1e9)
    assert found.total_seconds == pytest.approx(found.kernel_seconds + found.sync_seconds + found.transfer_seconds)


def test_operator_with_a_contract_costs_what_that_says(open_with: OpenWith) -> None:
    register_operators()
    open_with(bandwidth_gb_s=1.0, tflops={"float32": 1e-3}, launch_us=5.0)
    contract = load_operators()["day0::hadamard"]
    x = torch.ones(4, 64, device="sim")
    overload = torch.ops.day0.hadamard.default
    library = torch.library.Library("day0", "IMPL")
    library.impl("hadamard", lambda value, *rest: value.clone() + 0, "PrivateUse1")
    try:
        found = _counted(lambda: overload(x))
    finally:
        library._destroy()
    assert contract.flops is not None
    assert set(found.seconds) == {"day0::hadamard"}, "what it is written with costs nothing beside"
    assert found.flops == contract.flops(x)
    assert found.calls["aten::clone"] == 1


# -------------------------------------------------------------------------------------------- the record


@pytest.mark.usefixtures("null")
def test_record_is_frozen_and_counting_starts_anew() -> None:
    x = torch.ones(4, device="sim")
    first = _counted(lambda: x + 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.flops = 1  # type: ignore[misc]  # that it is refused is the point
    x + 1
    assert first.calls == {"aten::add.Tensor": 1}
    assert _sim().counters().calls == {"aten::add.Tensor": 2}
    _sim().reset_counters()
    assert _sim().counters().calls == {}
    assert _sim().counters().total_seconds == 0


def test_counts_for_the_canary() -> None:
    device = open_sim(load_profile("null"))
    before = device_counts(device)
    torch.ones(4, device="sim").sum().item()
    after = device_counts(device)
    assert after["sim_host_syncs"] - before["sim_host_syncs"] == 1
    assert after["sim_seconds"] > before["sim_seconds"]
    assert device_counts(torch.device("cpu")) == {}
    assert fallback_calls(torch.device("cpu")) == 0


def test_calls_that_the_device_sends_to_the_cpu_are_asked_for_alone() -> None:
    device = open_sim(load_profile("sim").model_copy(update={"fallback": "cpu"}))
    before = fallback_calls(device)
    torch.ones(4, device="sim").topk(2)
    assert fallback_calls(device) == before + 1
    assert device_counts(device)["sim_fallbacks"] == fallback_calls(device)
