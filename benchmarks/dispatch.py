"""What a routed operator costs per call, next to torch.library's own way of replacing a kernel with Python code.

On both sides the same smallest kernel that keeps its contract: it allocates its result and returns it. (It cannot
return its argument: torch.library.custom_op refuses that.) Three cases: an operator of aten that is replaced on the
CPU, one of day0's own, and a router that stands in torch while no lock is active in this thread. The guard is what a
call takes longer than with `Library.impl`. All are measured in turns in time on a core, and the minimum of the rounds
counts: other programs only add. The figure is the worst of the three ratios to `Library.impl`; its mark is 1.5, the guard's 2 µs.
"""

from __future__ import annotations

import argparse
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from day0.implementation import Implementation
from day0.records import Lock, LockEntry
from day0.reference_ops.signatures import resolve
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate

ATEN, OWN = "aten::erfinv", "day0::rms_norm"
CPU = torch.device("cpu")
CALLS = 20_000
WARM_UP = 4_000
"""More calls than those whose results are all held against the contract."""
MARK, GUARD_MARK_US = 1.5, 2.0

Call = Callable[[], object]


@dataclass
class Way:
    """One way to be called, and what a call took in each round, in µs."""

    name: str
    enter: Callable[[], AbstractContextManager[object]]
    """Makes the context in which `call` takes this way."""
    call: Call
    times: list[float] = field(default_factory=list)


def main() -> None:
    """Measure, print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="how often each is timed")
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore", UserWarning)  # torch says once that a kernel was overridden: on purpose here
    torch.set_num_threads(1)
    register_operators()
    print(f"torch {torch.__version__}, {CALLS:,} calls in each of {rounds} rounds, µs per call, x of Library.impl")
    ratios, guards = [], []
    for title, ways in (("aten on cpu", _aten()), ("day0:: on cpu", _own()), ("no lock here", _inactive())):
        _time(ways, rounds)
        theirs, ours = min(ways[0].times), min(ways[1].times)
        ratios.append(ours / theirs)
        guards.append(ours - theirs)
        for way in ways:
            best, middle = min(way.times), sorted(way.times)[len(way.times) // 2]
            print(f"{title:<14} {way.name:<40} min {best:6.3f}  median {middle:6.3f}  x {best / theirs:.2f}")
    print(f"marks: {GUARD_MARK_US:g} µs for the guard, {MARK:g} for the overhead, both of the worst of the three")
    print(f"figure: dispatch_guard_us {max(guards):.3f}")
    print(f"figure: dispatch_overhead {max(ratios):.2f}")


def _time(ways: list[Way], rounds: int) -> None:
    for _ in range(rounds):
        for way in ways:
            with way.enter():
                _seconds(way.call, WARM_UP)
                way.times.append(_seconds(way.call, CALLS) / CALLS * 1e6)


def _seconds(call: Call, times: int) -> float:
    """Return the time of this thread on a core: waiting for other programs is left out."""
    began = time.thread_time()
    for _ in range(times):
        call()
    return time.thread_time() - began


def _aten() -> list[Way]:
    x_N = torch.ones(8)

    def kernel(x_N: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x_N)

    custom = torch.library.custom_op("day0_bench::erfinv", kernel, mutates_args=())
    return [
        Way("torch.library.Library.impl", lambda: _their_kernel(ATEN, kernel), lambda: torch.erfinv(x_N)),
        Way("day0 router", lambda: _our_kernel(ATEN, kernel, ("float32",)), lambda: torch.erfinv(x_N)),
        Way("torch.library.custom_op, a new operator", nullcontext, lambda: custom(x_N)),
    ]


def _own() -> list[Way]:
    x_RD, weight_D = torch.ones(2, 8), torch.ones(8)
    operator = resolve(OWN)

    def kernel(x_RD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
        return torch.empty_like(x_RD)

    custom = torch.library.custom_op("day0_bench::rms_norm", kernel, mutates_args=())
    return [
        Way(
            "torch.library.Library.impl",
            lambda: _their_kernel(OWN, kernel),
            lambda: operator(x_RD, weight_D, 1e-6),
        ),
        Way(
            "day0 router",
            lambda: _our_kernel(OWN, kernel, ("float32", "float32")),
            lambda: operator(x_RD, weight_D, 1e-6),
        ),
        Way("torch.library.custom_op, a new operator", nullcontext, lambda: custom(x_RD, weight_D, 1e-6)),
    ]


def _inactive() -> list[Way]:
    """Calls that go to the kernel below, since the lock is active in another thread."""
    x_N = torch.ones(8)
    below = torch.library.get_kernel(resolve(ATEN), "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def pass_on(x_N: torch.Tensor) -> object:
        return below.call_boxed(keys, x_N)

    return [
        Way("Library.impl that calls what was there", lambda: _their_kernel(ATEN, pass_on), lambda: torch.erfinv(x_N)),
        Way("day0 router", lambda: _elsewhere(pass_on), lambda: torch.erfinv(x_N)),
        Way("nothing in between", nullcontext, lambda: torch.erfinv(x_N)),
    ]


@contextmanager
def _their_kernel(op: str, kernel: Callable[..., object]) -> Iterator[None]:
    namespace, _, name = op.partition("::")
    with torch.library._scoped_library(namespace, "IMPL") as library:
        library.impl(name, kernel, "CPU", allow_override=True)
        yield


@contextmanager
def _our_kernel(op: str, kernel: Callable[..., object], dtypes: tuple[str, ...]) -> Iterator[None]:
    one = Implementation(
        operator=op,
        contract=1,
        id="smallest",
        version="1.0",
        kind="kernel",
        run=kernel,
        why="the smallest",
        origin="benchmarks/dispatch.py",
        source_hash="sha256:0",
    )
    entry = LockEntry(
        operator=op,
        dtypes=dtypes,
        signatures=(),
        identity=one.identity,
        kind="kernel",
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
    )
    lock = Lock(device="cpu", namespace="base", model="sha256:0", entries=(entry,))
    with activate(lock, CPU, [one]) as active:
        yield
        if not active.receipts()[0].calls and threading.current_thread() is threading.main_thread():
            raise RuntimeError(f"{op} was never routed: there is nothing to measure")


@contextmanager
def _elsewhere(kernel: Callable[..., object]) -> Iterator[None]:
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _our_kernel(ATEN, kernel, ("float32",)):
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
