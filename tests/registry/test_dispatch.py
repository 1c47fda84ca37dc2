"""Dispatch on the CPU, which every machine has: replacing a kernel, counting it, and leaving torch as it was."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.records import Lock, LockEntry
from day0.reference_ops import topk_tokens
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import ActiveLock, activate, suspended

CPU = torch.device("cpu")


def _implementation(value: float, *, id: str = "fake") -> Implementation:
    return Implementation(
        operator="aten::erfinv",
        contract=1,
        id=id,
        version="1.0",
        kind="kernel",
        run=lambda x: torch.full_like(x, value),
        why="a number that no erfinv gives",
        origin="test",
        source_hash=f"sha256:{value}",
    )


def _lock(one: Implementation, *dtypes: str) -> Lock:
    entries = tuple(
        LockEntry(
            operator="aten::erfinv",
            dtypes=(dtype,),
            signatures=(),
            identity=one.identity,
            kind=one.kind,
            source_hash=one.source_hash,
            origin=one.origin,
            decisions=(),
        )
        for dtype in dtypes
    )
    return Lock(device="cpu", namespace="base", model="sha256:0", entries=entries)


def _run(dtype: torch.dtype = torch.float32) -> float:
    return float(torch.erfinv(torch.tensor(0.5, dtype=dtype)))


def test_the_implementation_runs_is_counted_and_torch_is_restored() -> None:
    before = _run()
    one = _implementation(42.0)
    with activate(_lock(one, "float32"), CPU, [one]) as active:
        assert _run() == 42.0
        assert _run() == 42.0
        assert [receipt.calls for receipt in active.receipts()] == [2]
    assert _run() == before


def test_only_the_locked_dtypes_are_routed() -> None:
    before = _run(torch.float64)
    one = _implementation(42.0)
    with activate(_lock(one, "float32"), CPU, [one]):
        assert _run(torch.float64) == before
        assert _run() == 42.0


def test_torch_is_restored_after_an_exception() -> None:
    before = _run()
    one = _implementation(42.0)
    with pytest.raises(ZeroDivisionError), activate(_lock(one, "float32"), CPU, [one]):
        raise ZeroDivisionError
    assert _run() == before


def test_nested_locks_take_turns() -> None:
    before = _run()
    outer, inner = _implementation(1.0, id="outer"), _implementation(2.0, id="inner")
    with activate(_lock(outer, "float32"), CPU, [outer]):
        with activate(_lock(inner, "float32"), CPU, [inner]):
            assert _run() == 2.0
        assert _run() == 1.0
    assert _run() == before


def test_two_threads_have_their_own_implementations() -> None:
    before = _run()
    barrier = threading.Barrier(3, timeout=60)
    found: dict[float, set[float]] = {}

    def work(value: float) -> None:
        one = _implementation(value, id=f"v{value:g}")
        with activate(_lock(one, "float32"), CPU, [one]):
            barrier.wait()
            found[value] = {_run() for _ in range(50)}
            barrier.wait()

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    barrier.wait()
    here = _run()  # no lock is active in this thread, though routers are installed
    barrier.wait()
    for thread in threads:
        thread.join()
    assert found == {1.0: {1.0}, 2.0: {2.0}}
    assert here == before
    assert _run() == before


def test_an_implementation_that_calls_its_own_operator_gets_the_kernel_below() -> None:
    before = _run()
    one = replace(_implementation(0.0), run=lambda x: torch.erfinv(x) + 100.0)
    with activate(_lock(one, "float32"), CPU, [one]) as active:
        assert _run() == pytest.approx(before + 100.0)
        assert active.receipts()[0].calls == 1


def test_numbers_reach_an_implementation_as_tensors_and_the_kernel_below_too() -> None:
    seen: list[object] = []

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(type(y))
        return x.clone()

    one = replace(_implementation(0.0), operator="aten::mul", run=run)
    lock = _lock(one, "float32")
    entry = lock.entries[0].model_copy(update={"operator": "aten::mul.Tensor"})
    with activate(lock.model_copy(update={"entries": (entry,)}), CPU, [one]):
        assert (torch.full((2,), 3.0) * 2.0).tolist() == [3.0, 3.0]
        assert (torch.full((2,), 3.0, dtype=torch.float64) * 2.5).tolist() == [7.5, 7.5]
        assert (torch.full((2,), 3) * 2.5).dtype == torch.float32
    assert seen == [torch.Tensor]


def test_a_changed_source_is_refused() -> None:
    one = _implementation(42.0)
    lock = _lock(one, "float32")
    with (
        pytest.raises(Day0Error, match="has changed since it was locked"),
        activate(lock, CPU, [replace(one, source_hash="sha256:other")]),
    ):
        pass
    with pytest.raises(Day0Error, match="is not there"), activate(lock, CPU, []):
        pass
    assert _run() != 42.0


def test_one_that_never_ran_has_a_receipt_of_zero() -> None:
    one = _implementation(42.0)
    with activate(_lock(one, "float32", "float64"), CPU, [one]) as active:
        _run()
        assert _calls(active) == {("float32",): 1, ("float64",): 0}


def _calls(active: ActiveLock) -> dict[tuple[str, ...], int]:
    return {entry.dtypes: receipt.calls for entry, receipt in zip(active.lock.entries, active.receipts(), strict=True)}


def test_calls_that_no_lock_covers_reach_the_native_kernel_of_the_simulated_device() -> None:
    device = open_torch_device(load_profile("sim"))
    one = replace(_implementation(7.0), operator="aten::histc", run=lambda x, *rest: torch.full_like(x, 7))
    entry = LockEntry(
        operator="aten::histc",
        dtypes=("int32",),
        signatures=(),
        identity=one.identity,
        kind="kernel",
        source_hash=one.source_hash,
        origin="test",
        decisions=(),
    )
    lock = Lock(device="sim", namespace="base", model="x", entries=(entry,))
    whole, real = torch.ones(3, dtype=torch.int32), torch.ones(3)
    with activate(lock, device, [one]) as active:
        assert torch.histc(whole.to(device), 3).cpu().tolist() == [7, 7, 7]
        assert torch.histc(real.to(device), 2, 0, 1).cpu().tolist() == [0, 3]
        assert active.receipts()[0].calls == 1
    assert torch.histc(real.to(device), 2, 0, 1).cpu().tolist() == [0, 3]
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        torch.histc(whole.to(device))


def test_without_a_kernel_below_the_router_refuses_where_no_lock_is_active() -> None:
    register_operators()
    device = open_torch_device(load_profile("sim"))
    one = replace(_implementation(1.0), operator="day0::topk_tokens", run=topk_tokens.reference)
    entry = LockEntry(
        operator="day0::topk_tokens",
        dtypes=("float32",),
        signatures=(),
        identity=one.identity,
        kind="kernel",
        source_hash=one.source_hash,
        origin="test",
        decisions=(),
    )
    lock = Lock(device="sim", namespace="base", model="x", entries=(entry,))
    scores = torch.zeros(1, 1, 3).to(device)
    with activate(lock, device, [one]):
        torch.ops.day0.topk_tokens(scores, 2)
        with suspended(), pytest.raises(NotImplementedError, match="Could not run 'day0::topk_tokens'"):
            torch.ops.day0.topk_tokens(scores, 2)
    with pytest.raises(NotImplementedError, match="Could not run 'day0::topk_tokens'"):
        torch.ops.day0.topk_tokens(scores, 2)
