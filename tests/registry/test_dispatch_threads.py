"""Locks and threads: two toys with their own implementations, pools, tasks, backward passes, and counts among them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.implementation import Implementation
from day0.models.toy.calls import dispatched, references
from day0.models.toy.model import ToyConfig
from day0.records import Lock
from day0.reference_ops import kda_gate
from day0.registry.dispatch import ActiveLock, activate, carried, suspended
from day0.registry.kernel_tables import changed_tables, snapshot
from tests.models.toys import config_of, ids, toy
from tests.registry.locking import implementation, lock_of

CPU = torch.device("cpu")
X_N = torch.linspace(-0.5, 0.5, 4)
KINDS = ("kimi-k3.1", "glm-5.3-flash")
OPS = ("aten::silu", "day0::kda_gate")

Version = tuple[ToyConfig, tuple[Implementation, ...], Lock]


def _version(number: int, device: torch.device) -> Version:
    """Return a version of the toy: a family, and its own implementations of one aten operator and one of ours.

    Both are wrong by a factor of their own, so that a mix-up shows.
    """
    factor, name = 1 + (number + 1) / 16, f"toy/v{number}"

    def silu(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x) * factor

    def gate(*args: Any) -> torch.Tensor:
        return kda_gate.reference(*args) * factor

    ours = implementation("day0::kda_gate", gate, id=f"gate{number}", namespace=name)
    torchs = implementation("aten::silu", silu, id=f"silu{number}", namespace=name)
    lock = lock_of((ours, ("float32",) * 3), (torchs, ("float32",)), device=device.type)
    return config_of(KINDS[number], num_hidden_layers=2, mla_layers=(2,)), (ours, torchs), lock


def _run(version: Version, device: torch.device, barrier: threading.Barrier) -> tuple[torch.Tensor, list[int]]:
    config, implementations, lock = version
    model = toy(config, torch.float32, _calls()).to(device)
    with activate(lock, device, implementations) as active:
        barrier.wait()  # both are active before either runs
        with torch.no_grad():
            outputs = [model(input_ids=ids(1, 5, seed=seed).to(device)).logits.cpu() for seed in range(2)]
        barrier.wait()
        return torch.cat(outputs), [receipt.calls for receipt in active.receipts()]


def _calls() -> SimpleNamespace:
    """Return the references, but for the operator that the versions replace: the device lacks all of ours."""
    return SimpleNamespace(**{**vars(references()), "kda_gate": dispatched().kda_gate})


@pytest.mark.parametrize("place", ["cpu", "null"])
def test_two_threads_run_two_toys_with_their_own_implementations(place: str) -> None:
    device = CPU if place == "cpu" else open_torch_device(load_profile(place))
    versions = [_version(number, device) for number in (0, 1)]
    dispatched()
    before = snapshot(OPS)
    alone = [_run(version, device, threading.Barrier(1)) for version in versions]
    barrier = threading.Barrier(2, timeout=120)
    together = _in_threads(*(lambda version=version: _run(version, device, barrier) for version in versions))
    for (logits, calls), (logits_alone, calls_alone) in zip(together, alone, strict=True):
        assert torch.equal(logits, logits_alone)
        assert calls == calls_alone and min(calls) > 0
    plain = toy(versions[0][0], torch.float32, _calls())(input_ids=ids(1, 5, seed=0)).logits
    assert not torch.allclose(plain, alone[0][0][:1], rtol=1e-3), "the implementations are right: nothing is proved"
    assert changed_tables(before) == {}


def _in_threads(*acts: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(acts)) as pool:
        return [one.result() for one in [pool.submit(act) for act in acts]]


ONES = implementation("aten::erfinv", torch.ones_like, id="ones")
ONES_LOCK = lock_of((ONES, ("float32",)))


def _routed() -> bool:
    return bool((torch.erfinv(X_N) == 1).all())


def test_a_new_thread_and_a_pool_begin_without_a_lock_unless_they_are_given_the_context() -> None:
    with activate(ONES_LOCK, CPU, [ONES]) as active:
        assert _routed()
        assert _in_threads(_routed, _routed) == [False, False]
        assert active.counts == {("aten::erfinv", "('float32',)"): 1}
        assert _in_threads(carried(_routed), carried(_routed)) == [True, True]
        assert active.receipts()[0].calls == 3
        later = carried(_routed)
    assert not later(), "a context outlives the lock that was active in it, and then there is none"


def test_no_call_is_lost_between_threads() -> None:
    threads, each = 4, 3000

    def work() -> None:
        for _ in range(each):
            torch.erfinv(X_N)

    with activate(ONES_LOCK, CPU, [ONES]) as active:
        seen = [active.receipts()[0].calls for _ in range(5)]
        _in_threads(*[carried(work)] * threads)
        assert seen == [0] * 5, "reading does not count"
        assert active.receipts()[0].calls == threads * each


def test_tasks_have_the_lock_under_which_they_were_made() -> None:
    twos = implementation("aten::erfinv", lambda x: torch.full_like(x, 2), id="twos")

    async def value(began: asyncio.Event, go: asyncio.Event) -> float:
        began.set()
        await go.wait()
        return float(torch.erfinv(X_N)[0])

    async def made(go: asyncio.Event) -> asyncio.Task[float]:
        began = asyncio.Event()
        task = asyncio.create_task(value(began, go))
        await began.wait()
        return task

    async def main() -> list[float]:
        go, later = asyncio.Event(), asyncio.Event()
        with activate(ONES_LOCK, CPU, [ONES]):
            first = await made(go)
            with activate(lock_of((twos, ("float32",))), CPU, [twos]):
                second = await made(go)
                late = await made(later)
                with suspended():
                    third = await made(go)
                go.set()
                found = [await first, await second, await third]
        later.set()
        return [*found, await late]

    plain = float(torch.erfinv(X_N)[0])
    assert asyncio.run(main()) == [1.0, 2.0, plain, plain]


def _switch() -> bool:
    """Say how torch's switch stands, after what another thread left behind was made good."""
    with activate(ONES_LOCK, CPU, [ONES]):
        pass
    return bool(torch._C._is_multithreading_enabled())


def _backward_calls(active: ActiveLock, x_N: torch.Tensor) -> int:
    before = active.receipts()[0].calls
    torch.tanh(x_N).sum().backward()
    return active.receipts()[0].calls - before


def test_a_backward_pass_is_routed_on_every_device() -> None:
    # torch runs those of other devices than the CPU in threads of its own, unless it is told not to.
    one = implementation("aten::tanh_backward", lambda grad, y: grad * (1 - y * y))
    device, before = open_torch_device(load_profile("sim")), _switch()
    with activate(lock_of((one, ("float32",) * 2)), CPU, [one]) as active:
        assert _backward_calls(active, X_N.clone().requires_grad_()) == 1
    with activate(lock_of((one, ("float32",) * 2), device="sim"), device, [one]) as active:
        x_N = X_N.to(device).requires_grad_()
        assert _backward_calls(active, x_N) == 1
    assert torch._C._is_multithreading_enabled() == before


def test_tasks_that_take_turns_keep_their_backward_passes_to_themselves() -> None:
    # The first to end leaves the second's switch alone, and the second puts back what stood before both.
    async def task(enter: asyncio.Event, entered: asyncio.Event, leave: asyncio.Event) -> bool:
        await enter.wait()
        with activate(ONES_LOCK, CPU, [ONES]):
            entered.set()
            await leave.wait()
            return torch._C._is_multithreading_enabled()

    async def main() -> list[bool]:
        events = [[asyncio.Event() for _ in range(3)] for _ in range(2)]
        tasks = [asyncio.create_task(task(*three)) for three in events]
        for enter, entered, _leave in events:
            enter.set()
            await entered.wait()
        found = []
        for (*_, leave), one in zip(events, tasks, strict=True):
            leave.set()
            found.append(await one)
        return found

    before = _switch()
    assert asyncio.run(main()) == [False, False]
    assert torch._C._is_multithreading_enabled() == before


def test_a_context_that_ends_in_another_thread_is_made_good_by_the_next() -> None:
    before = _switch()
    opened = activate(ONES_LOCK, CPU, [ONES])
    opened.__enter__()
    thread = threading.Thread(target=opened.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with activate(ONES_LOCK, CPU, [ONES]):
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled() == before
