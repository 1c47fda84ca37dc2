"""On an NVIDIA GPU: operators are replaced, run, are counted and restored; in graphs, compiled, and in threads too.

Each check prints one line with what it found. The figures are how many checks failed, which has to be 0, and the
overhead per call next to `torch.library.Library.impl`, as in `dispatch.py`. Without a GPU the script says so and ends
with 2; `--device cpu` runs what does not need one.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from day0.errors import USER_ERRORS, Day0Error
from day0.implementation import Implementation
from day0.records import Lock, LockEntry
from day0.reference_ops import hadamard
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import ActiveLock, activate, carried, suspended
from day0.registry.kernel_tables import changed_tables, snapshot
from day0.registry.receipts import silent
from day0.registry.results import WrongResult

ROUNDS, WARM_UP, CALLS = 15, 2_000, 5_000
OPS = ("aten::silu", "aten::topk", "aten::_softmax", "day0::hadamard", "aten::tanh_backward")
DEVICE = [torch.device("cuda", 0)]
silu, topk, softmax = torch.nn.functional.silu, torch.topk, torch.softmax
SKIPPED: tuple[type[BaseException], ...] = (*USER_ERRORS,)


def main() -> int:
    """Run all checks; return 0 if they hold, 1 if not, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the kernels run")
    asked = parser.parse_args().device
    if asked == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device here: nothing was checked")
        return 2
    DEVICE[0] = torch.device("cuda", 0) if asked == "cuda" else torch.device("cpu")
    warnings.simplefilter("ignore")
    register_operators()
    name = f"CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}" if asked == "cuda" else "on the CPU"
    print(f"torch {torch.__version__}, {name}")
    checks = [*CHECKS, *(CUDA_CHECKS if asked == "cuda" else ())]
    before = snapshot(OPS)
    failed = sum(not _holds(check) for check in checks)
    changes = changed_tables(before)
    print(f"{'FAIL' if changes else 'ok  '} dispatch tables of {', '.join(OPS)} after all: {changes or 'as before'}")
    _overhead()
    print(f"figure: dispatch_cuda_failed {failed + bool(changes)}")
    return 1 if failed or changes else 0


def _holds(check: Callable[[], str]) -> bool:
    title = (check.__doc__ or check.__name__).strip().rstrip(".")
    try:
        found = check()
    except (*USER_ERRORS, Day0Error):
        print(f"FAIL {title}\n{traceback.format_exc()}")
        return False
    print(f"ok   {title}: {found}", flush=True)
    return True


def _one(operator: str, run: Callable[..., Any], name: str = "test") -> Implementation:
    return Implementation(
        operator=operator,
        contract=1,
        id=name,
        version="1.0",
        kind="kernel",
        run=run,
        why="for this script",
        origin="benchmarks/dispatch_cuda.py",
        source_hash=f"sha256:{name}",
    )


@contextmanager
def _locked(one: Implementation, *dtypes: str) -> Iterator[ActiveLock]:
    entry = LockEntry(
        operator=one.operator,
        dtypes=dtypes,
        signatures=(),
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
    )
    lock = Lock(device=DEVICE[0].type, namespace="base", model="sha256:0", entries=(entry,))
    with activate(lock, DEVICE[0], [one]) as active:
        yield active


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(what)


def _x(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE[0])


def _my_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x) * 1.5


def _calls(active: ActiveLock) -> int:
    return active.receipts()[0].calls


def replaced() -> str:
    """An operator is replaced, runs, is counted and is restored."""
    x_RD = _x(64, 128, dtype=torch.bfloat16)
    plain = silu(x_RD)
    before = snapshot(OPS)
    with _locked(_one("aten::silu", _my_silu), "bfloat16") as active:
        got = silu(x_RD)
        inside = changed_tables(before)
        _need(torch.equal(got, _my_silu(x_RD)), "the implementation did not run")
        _need(_calls(active) == 1 and set(inside) == {"aten::silu"}, f"{active.receipts()}, {list(inside)}")
        _need(torch.equal(silu(x_RD.float()), torch.ops.aten.silu(x_RD.float())), "float32 is not locked")
        _need(_calls(active) == 1, "float32 was counted")
    _need(torch.equal(silu(x_RD), plain), "the kernel of before is not back")
    return f"1 call counted, {len(inside['aten::silu'])} lines of the table changed meanwhile and none afterwards"


def several_results() -> str:
    """One with several results: topk by sorting."""
    x_RD = _x(8, 1000)

    def run(x: torch.Tensor, k: int, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        values, order = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[..., :k].contiguous(), order[..., :k].contiguous()

    values_RK, _ = topk(x_RD, 5)
    with _locked(_one("aten::topk", run), "float32") as active:
        got_RK, order_RK = topk(x_RD, 5)
        _need(torch.equal(got_RK, values_RK) and torch.equal(x_RD.gather(1, order_RK), got_RK), "other values")
        return f"{_calls(active)} call"


def below() -> str:
    """One that calls its own operator reaches the kernel below: softmax."""
    x_RD = _x(8, 100, dtype=torch.float16)
    plain = softmax(x_RD, -1)
    with _locked(_one("aten::_softmax", lambda x, *rest: torch._softmax(x, *rest) * 2), "float16") as active:
        got = softmax(x_RD, -1)
        _need(torch.equal(got, plain * 2) and _calls(active) == 1, "not the kernel below")
        with suspended():
            _need(torch.equal(softmax(x_RD, -1), plain), "suspended, but routed")
        return f"{_calls(active)} call"


def ours() -> str:
    """One of day0's operators gets its first kernel on the device, and loses it again."""
    x_RD = _x(4, 64)
    with _locked(_one("day0::hadamard", lambda x: hadamard.reference(x)), "float32") as active:
        got = torch.ops.day0.hadamard(x_RD)
        _need(torch.allclose(got.cpu(), hadamard.reference(x_RD.cpu()), atol=1e-5), "other values")
        calls = _calls(active)
    if DEVICE[0].type == "cpu":
        return f"{calls} call"
    try:
        torch.ops.day0.hadamard(x_RD)
    except NotImplementedError as error:
        return f"{calls} call; afterwards {str(error).splitlines()[0][:70]}…"
    raise RuntimeError("it still has a kernel")


def wrong_results() -> str:
    """Another shape, dtype or device than the contract says is refused."""
    x_RD, said = _x(4, 8), []
    for run in (lambda x: x[:-1].clone(), lambda x: x.double(), lambda x: torch.empty_like(x, device="meta")):
        with _locked(_one("aten::silu", run), "float32"):
            try:
                silu(x_RD)
            except WrongResult as error:
                said.append(error.what)
    _need(len(said) == 3, f"refused: {said}")
    return said[0]


def exceptions() -> str:
    """An exception in an implementation reaches the caller and moves the call nowhere else."""
    x_RD = _x(4, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError("planted")

    with _locked(_one("aten::silu", run), "float32") as active:
        try:
            silu(x_RD)
        except MemoryError:
            _need(_calls(active) == 0, "counted")
            return "MemoryError, 0 calls"
    raise RuntimeError("nothing was raised")


def threads() -> str:
    """Two threads with their own implementations of one operator give what single runs give."""
    inputs = [_x(64, 64, seed=seed) for seed in range(50)]
    kinds = [_one("aten::silu", lambda x, f=f: x * torch.sigmoid(x) * f, f"f{f}") for f in (2.0, 3.0)]

    def run(one: Implementation, barrier: threading.Barrier) -> tuple[list[torch.Tensor], int]:
        with _locked(one, "float32") as active:
            barrier.wait(60)
            found = [silu(x).cpu() for x in inputs]
            barrier.wait(60)
            return found, _calls(active)

    alone = [run(one, threading.Barrier(1)) for one in kinds]
    barrier, found = threading.Barrier(2), dict[int, Any]()
    workers = [
        threading.Thread(target=lambda n=n: found.update({n: run(kinds[n], barrier)})) for n in range(len(kinds))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    same = all(torch.equal(a, b) for n in found for a, b in zip(found[n][0], alone[n][0], strict=True))
    _need(len(found) == 2 and same and all(found[n][1] == 50 for n in found), "mixed up")
    return "50 calls each, equal bit for bit"


def pools() -> str:
    """A thread begins without a lock unless it is given the context."""
    x_RD = _x(4, 8)
    with _locked(_one("aten::silu", _my_silu), "float32") as active:
        for target in (lambda: silu(x_RD), carried(lambda: silu(x_RD))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        _need(_calls(active) == 1, f"{_calls(active)} calls")
    return "1 of 2 counted"


def backward() -> str:
    """A backward pass is routed where it runs in the caller's thread."""
    counts = []
    with _locked(_one("aten::tanh_backward", lambda grad, y: grad * (1 - y * y)), "float32", "float32") as active:
        for threaded in (True, False):
            with torch.autograd.set_multithreading_enabled(threaded):
                torch.tanh(_x(4, 8).requires_grad_()).sum().backward()
            counts.append(_calls(active))
    _need(counts == ([0, 1] if DEVICE[0].type == "cuda" else [1, 2]), f"calls {counts}")
    return f"calls {counts[0]} in torch's own threads, {counts[1] - counts[0]} with set_multithreading_enabled(False)"


def where() -> str:
    """Calls are counted by module while a model is watched."""
    model = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(8, 8), torch.nn.SiLU()).to(DEVICE[0])
    with _locked(_one("aten::silu", _my_silu), "float32") as active, torch.no_grad():
        with active.watching(model):
            model(_x(4, 8))
        model(_x(4, 8))
        receipt = active.receipts()[0]
    _need(receipt.where == {"0": 1, "2": 1} and receipt.calls == 4, f"{receipt}")
    return f"{receipt.where}, {receipt.calls} calls in all"


def compiled() -> str:
    """torch.compile: our operators are opaque to every backend; those of torch are inert under inductor, and said so."""
    x_RD, said = _x(4, 64), []
    for backend in ("eager", "aot_eager", "inductor"):
        torch._dynamo.reset()
        try:
            with _locked(_one("aten::silu", _my_silu), "float32") as active:
                function = torch.compile(lambda x: silu(x) + 1, backend=backend)
                function(x_RD)
                function(x_RD)
                torchs, idle = _calls(active), silent(active.receipts(), active.lock.entries)
            with _locked(_one("day0::hadamard", lambda x: hadamard.reference(x) * 2), "float32") as active:
                function = torch.compile(lambda x: torch.ops.day0.hadamard(x) + 1, backend=backend, fullgraph=True)
                function(x_RD)
                function(x_RD)
                own = _calls(active)
        except SKIPPED as error:
            if backend != "inductor":
                raise
            said.append(f"inductor did not compile here: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
            continue
        said.append(f"{backend}: aten::silu {torchs}, day0::hadamard {own}")
        _need(own == 2 and torchs == (0 if backend == "inductor" else 2) and bool(idle) == (not torchs), said[-1])
    return "; ".join(said)


def captured() -> str:
    """In a CUDA graph an implementation is counted when it is captured, not when the graph is replayed."""
    x_RD = _x(64, 64)
    with _locked(_one("aten::silu", _my_silu), "float32") as active:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            silu(x_RD)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                y_RD = silu(x_RD)
        x_RD.copy_(_x(64, 64, seed=1))
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        receipt = active.receipts()[0]
        _need(torch.equal(y_RD, _my_silu(x_RD)), "the graph does not hold the implementation")
    _need((receipt.calls, receipt.captured) == (4, 3), f"{receipt}")
    graph.replay()
    torch.cuda.synchronize()
    return (
        f"{receipt.calls} calls, {receipt.captured} of them captured, 10 replays not counted; it replays after exit too"
    )


CHECKS: tuple[Callable[[], str], ...] = (
    replaced,
    several_results,
    below,
    ours,
    wrong_results,
    exceptions,
    threads,
    pools,
    backward,
    where,
    compiled,
)
CUDA_CHECKS = (captured,)


def _overhead() -> None:
    def kernel(x_N: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x_N)

    x_N, key = _x(8), torch._C._dispatch_key_for_device(DEVICE[0].type)
    times: dict[str, list[float]] = {"Library.impl": [], "day0 router": []}
    for _ in range(ROUNDS):
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("silu", kernel, key, allow_override=True)
            times["Library.impl"].append(_micros(x_N))
        with _locked(_one("aten::silu", kernel), "float32"):
            times["day0 router"].append(_micros(x_N))
    theirs, ours_ = (min(found) for found in times.values())
    print(
        f"aten::silu on {key}: Library.impl {theirs:.3f} µs, day0 router {ours_:.3f} µs, guard {ours_ - theirs:.3f} µs"
    )
    print(f"figure: dispatch_cuda_overhead {ours_ / theirs:.2f}")


def _micros(x_N: torch.Tensor) -> float:
    for _ in range(WARM_UP):
        silu(x_N)
    began = time.thread_time()
    for _ in range(CALLS):
        silu(x_N)
    return (time.thread_time() - began) / CALLS * 1e6


if __name__ == "__main__":
    sys.exit(main())
