"""Experts converted when a step needs them, and kept for the next one: slots, conversions in flight, and what they cost.

Any number of threads may ask at one time. A thread waits for room only while it holds nothing, so nobody waits for
somebody who waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from day0.converters.online.fp8_workspace import Fp8Workspace, Packed
from day0.converters.online.lanes import Lane, lane_for
from day0.converters.online.slots import Plan, SlotTable, Taken

__all__ = ["CacheMetrics", "ExpertCache", "Source"]

Source = Callable[[int], Sequence[Packed]]
"""`source(expert)`: its matrices in four bits, in the order of the workspace's."""
Batch = list[Taken]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheMetrics:
    """What a cache did so far."""

    steps: int
    rounds: int
    """Groups of experts that were computed together, at least one for each step."""
    hits: int
    misses: int
    evictions: int
    unkept: int
    """Misses that were not kept: the step needed more experts than its layer has slots."""
    bytes_converted: int
    """Written into slots."""
    convert_seconds: float
    """Of all threads, or of the stream."""
    wait_seconds: float
    """How long callers stood still for a conversion or for room."""

    @property
    def hit_rate(self) -> float:
        """Share of the needed experts that lay there already."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


class ExpertCache:
    """Slots over a workspace. With `threads` (or a CUDA device) conversions overlap with what the caller computes."""

    def __init__(
        self, workspace: Fp8Workspace, plan: Plan, *, threads: int = 0, batch: int = 0, checked: bool = False
    ) -> None:
        """Use a workspace of `plan.slots + plan.scratch` slots.

        `batch` above 0: experts that lie there are computed first, and the others in groups of that many, each while
        the next is converted. `checked`: guards are compared after every step. Raises ValueError for another number
        of slots.
        """
        if workspace.slots != plan.slots + plan.scratch:
            raise ValueError(f"{workspace.slots} slots for {plan.slots} kept ones and {plan.scratch} of scratch")
        self.workspace, self.plan = workspace, plan
        self.table = SlotTable(plan)
        self.lane: Lane = lane_for(workspace.device, threads)
        self._batch, self._checked = batch, checked
        self._changed = threading.Condition()
        self._flying: dict[int, Future[Any]] = {}
        self._waited = 0.0

    def rounds(self, layer: int, needed: Iterable[int], source: Source) -> Iterator[Mapping[int, int]]:
        """Give every needed expert once: maps from expert to slot, which hold until the next map is asked for.

        The maps of a step together name each expert once. Raises what a conversion raises; its slot is free again.
        """
        with self._changed:
            step = self.table.begin()
        left = sorted(set(needed))
        waiting: deque[Batch] = deque()
        try:
            while left or waiting:
                held = self._take(step, layer, left, source, wait=not waiting)
                there = {one.expert for one in held}
                left = [expert for expert in left if expert not in there]
                waiting.extend(self._batches(held))
                for one in waiting[0]:
                    self._ready(one)
                yield {one.expert: one.slot for one in waiting[0]}
                self._release(waiting[0])
                waiting.popleft()
        finally:
            for batch in waiting:
                self._give_up(batch)
        if self._checked:
            self.workspace.check_guards()

    def metrics(self) -> CacheMetrics:
        """Return what happened so far."""
        seconds = self.lane.seconds()
        with self._changed:
            counts = self.table.counts
            return CacheMetrics(
                steps=counts.steps,
                rounds=counts.rounds,
                hits=counts.hits,
                misses=counts.misses,
                evictions=counts.evictions,
                unkept=counts.unkept,
                bytes_converted=counts.misses * self.workspace.slot_bytes,
                convert_seconds=seconds,
                wait_seconds=self._waited,
            )

    def close(self) -> None:
        """End the threads."""
        self.lane.close()

    def _batches(self, held: Batch) -> Iterator[Batch]:
        """Split what is held: what lies there first, then groups of what is being converted."""
        if not self._batch:
            if held:
                yield held
            return
        there, coming = [one for one in held if one.hit], [one for one in held if not one.hit]
        if there:
            yield there
        for first in range(0, len(coming), self._batch):
            yield coming[first : first + self._batch]

    def _take(self, step: int, layer: int, wanted: Sequence[int], source: Source, *, wait: bool) -> Batch:
        if not wanted:
            return []
        began = time.perf_counter()
        with self._changed:
            held = self.table.take(step, layer, wanted)
            while wait and not held:
                self._changed.wait()
                held = self.table.take(step, layer, wanted)
            self._waited += time.perf_counter() - began
            missing = [one for one in held if not one.hit]
            # Promised under the lock: another thread that finds the expert here waits for this conversion.
            promises = {one.slot: Future[Any]() for one in missing}
            self._flying.update(promises)
        for one in missing:
            self._convert(one, source, promises[one.slot])
        return held

    def _convert(self, one: Taken, source: Source, promise: Future[Any]) -> None:
        def work() -> None:
            for number, packed in enumerate(source(one.expert)):
                self.workspace.convert(one.slot, number, packed)

        def landed(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                with self._changed:
                    self.table.forget(one.slot)
                promise.set_exception(error)
            else:
                promise.set_result(done.result())

        try:
            self.lane.start(work, one.slot).add_done_callback(landed)
        except RuntimeError as error:  # the cache was closed; nobody may wait for ever
            failed: Future[Any] = Future()
            failed.set_exception(error)
            landed(failed)

    def _ready(self, one: Taken) -> None:
        with self._changed:
            promise = self._flying.get(one.slot)
        if promise is None:
            return
        began = time.perf_counter()
        try:
            promise.exception()
            self.lane.wait(promise)
        finally:
            with self._changed:
                self._waited += time.perf_counter() - began

    def _give_up(self, batch: Batch) -> None:
        """Let go of what nobody computed with: only when it has landed, or the next owner's slot is written twice."""
        for one in batch:
            with self._changed:
                promise = self._flying.get(one.slot)
            if promise is not None:
                promise.exception()
        self._release(batch)

    def _release(self, batch: Batch) -> None:
        for one in batch:
            self.lane.used(one.slot)
        with self._changed:
            self.table.release(batch)
            self._changed.notify_all()
