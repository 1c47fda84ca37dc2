"""Times on a GPU by events, of captured graphs where a call can be captured; and the ceilings of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

__all__ = ["Action", "ceilings", "timed"]

Action = Callable[[], Any]
FLUSH = 256 << 20
"""Bytes that are written before each measurement: several times the second-level cache of an H200."""


def timed(actions: Sequence[Action], repeat: int = 20, device: str = "cuda", *, graphs: bool = True) -> float:
    """Median of milliseconds; each action has inputs of its own, and the cache is emptied before each run."""
    for action in actions:
        action()
    if device != "cuda":
        return median(_by_clock(actions[number % len(actions)]) for number in range(min(repeat, 2)))
    runs = [_captured(action) if graphs else action for action in actions]
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


def _captured(action: Action) -> Action:
    """Return the replay of a graph, or the action itself where it waits for the host."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            action()
    except RuntimeError:
        torch.cuda.synchronize()
        return action
    return graph.replay


def ceilings(device: str) -> dict[str, float]:
    """Measure what the device can do: GB/s of a copy, read and written, and TFLOPS of a bfloat16 product."""
    nbytes, size = (4 << 30, 8192) if device == "cuda" else (1 << 20, 64)
    source = torch.empty(nbytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # A graph copies by another engine than a kernel does: the quicker of the two.
    copied = min(timed([lambda: target.copy_(source)], 20, device, graphs=graphs) for graphs in (True, False))
    one, two = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    product = timed([lambda: torch.matmul(one, two)], 20, device)
    return {"copy_gb_s": nbytes / copied / 1e6, "bf16_tflops": 2 * size**3 / product / 1e9}
