"""Times on a GPU by events, of captured graphs where a call can be captured; and the ceilings of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

__all__ = ["Action", "captured", "ceilings", "timed", "timed_runs"]

Action = Callable[[], Any]
FLUSH = 256 << 20
"""Bytes that are written before each measurement: several times the second-level cache of an H200."""


def timed(actions: Sequence[Action], repeat: int = 20, device: str = "cuda") -> float:
    """Median of milliseconds; each action has inputs of its own, and the cache is emptied before each run."""
    for action in actions:
        action()
    if device != "cuda":
        return median(_by_clock(actions[number % len(actions)]) for number in range(min(repeat, 2)))
    return timed_runs([captured(action)[0] for action in actions], repeat)


def timed_runs(runs: Sequence[Action], repeat: int = 20) -> float:
    """Median of milliseconds by events of what is ready to run, the cache emptied before each."""
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    found = []
    for number in range(repeat):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        runs[number % len(runs)]()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


def _by_clock(action: Action) -> float:
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)


def captured(action: Action) -> tuple[Action, str]:
    """Return the replay of a graph and `graph`, or the action itself and why it could not be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            action()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return action, f"eager, since {str(error).splitlines()[0][:120]}"
    return graph.replay, "graph"


def ceilings(device: str) -> dict[str, float]:
    """Measure what the device can do: GB/s of a copy, read and written, and TFLOPS of a bfloat16 product.

    The best of two copies counts, neither as a graph: in graphs a copy engine may do it, at two thirds of the speed.
    """
    cuda = device == "cuda"
    nbytes, size = (4 << 30, 8192) if cuda else (1 << 20, 64)
    source = torch.randint(0, 256, (nbytes // 2,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wide, out = source.view(torch.int64), target.view(torch.int64)
    ways: tuple[Action, ...] = (lambda: target.copy_(source), lambda: torch.bitwise_not(wide, out=out))
    copied = min(timed_runs([way], 20) if cuda else timed([way], 2, device) for way in ways)
    one, two = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    product = timed([lambda: torch.matmul(one, two)], 20, device)
    return {"copy_gb_s": nbytes / copied / 1e6, "bf16_tflops": 2 * size**3 / product / 1e9}
