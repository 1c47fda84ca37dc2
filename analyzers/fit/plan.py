"""Give tensors addresses: those whose lifetimes do not meet may share memory.

Three figures bound each other: the sum of all tensors (nothing shared), the planned size, and the largest sum of
what lives at one moment, below which no plan can go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["ALIGNMENT", "Lifetime", "MemoryPlan", "largest_live", "plan_memory"]

ALIGNMENT = 512
"""Bytes; what allocators of accelerators round up to."""

LARGEST_BY_SIZE = 30_000
"""Above that many tensors, only the planner that walks through time is used: the other compares all pairs."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor: it exists from the call `begin` until before the call `end`."""

    begin: int
    end: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """Where each tensor lies, and how much all of them take."""

    offsets: tuple[int, ...]
    planned: int
    unplanned: int
    """The sum of all tensors: what they would take if nothing were shared."""
    bound: int
    """The largest sum of tensors that live at one moment: no plan takes less."""
    strategy: str


def plan_memory(lives: Sequence[Lifetime]) -> MemoryPlan:
    """Return the better of two plans: largest tensors first, and first fit in the order of time."""
    sizes = [_aligned(one.bytes) for one in lives]
    if not lives:
        return MemoryPlan(offsets=(), planned=0, unplanned=0, bound=0, strategy="nothing to plan")
    bound = largest_live(lives)
    strategy, offsets = "first fit in time", _in_time(lives, sizes)
    planned = _top(offsets, sizes)
    # Where that one reaches the bound already, nothing can be better.
    if planned > bound and len(lives) <= LARGEST_BY_SIZE:
        other = _by_size(lives, sizes)
        if _top(other, sizes) < planned:
            strategy, offsets, planned = "largest first", other, _top(other, sizes)
    return MemoryPlan(offsets=tuple(offsets), planned=planned, unplanned=sum(sizes), bound=bound, strategy=strategy)


def _top(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max(offset + size for offset, size in zip(offsets, sizes, strict=True))


def largest_live(lives: Sequence[Lifetime]) -> int:
    """Return the largest sum of bytes that live at one moment."""
    changes: dict[int, int] = {}
    for one in lives:
        size = _aligned(one.bytes)
        changes[one.begin] = changes.get(one.begin, 0) + size
        changes[one.end] = changes.get(one.end, 0) - size
    most = now = 0
    for moment in sorted(changes):
        now += changes[moment]
        most = max(most, now)
    return most


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _in_time(lives: Sequence[Lifetime], sizes: list[int]) -> list[int]:
    """Place each tensor at the lowest gap that is free when it is born, as an allocator would."""
    offsets = [0] * len(lives)
    living: list[tuple[int, int, int]] = []  # offset, offset after, end of life; sorted by offset
    for number in sorted(range(len(lives)), key=lambda index: (lives[index].begin, index)):
        begin = lives[number].begin
        living = [place for place in living if place[2] > begin]
        at = _lowest_gap(living, sizes[number])
        offsets[number] = at
        living.append((at, at + sizes[number], lives[number].end))
        living.sort()
    return offsets


def _lowest_gap(places: Iterable[tuple[int, int, int]], size: int) -> int:
    at = 0
    for begin, end, _ in places:
        if begin - at >= size:
            return at
        at = max(at, end)
    return at


def _by_size(lives: Sequence[Lifetime], sizes: list[int]) -> list[int]:
    """Place the largest tensors first, each at the lowest gap among those it meets in time."""
    begins = np.array([one.begin for one in lives], dtype=np.int64)
    ends = np.array([one.end for one in lives], dtype=np.int64)
    lows, highs = np.zeros(len(lives), dtype=np.int64), np.zeros(len(lives), dtype=np.int64)
    placed = np.zeros(len(lives), dtype=bool)
    for number in sorted(range(len(lives)), key=lambda index: (-sizes[index], index)):
        meets = np.flatnonzero(placed & (begins < ends[number]) & (ends > begins[number]))
        meets = meets[np.argsort(lows[meets], kind="stable")]
        at = _lowest_gap(zip(lows[meets].tolist(), highs[meets].tolist(), meets, strict=True), sizes[number])
        lows[number], highs[number], placed[number] = at, at + sizes[number], True
    return [int(low) for low in lows]
