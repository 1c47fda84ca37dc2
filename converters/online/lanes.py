"""Where conversions run while the model computes: threads beside the CPU, a stream beside a CUDA device's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

__all__ = ["Lane", "StreamLane", "ThreadLane", "lane_for"]


class Lane(Protocol):
    """Something that work is given to."""

    def start(self, work: Callable[[], None], slot: int) -> Future[Any]:
        """Begin work that writes into a slot, after everybody who read it; the future is done when others may wait."""

    def wait(self, done: Future[Any]) -> None:
        """Return when what the caller computes next may read the result. Raises what the work raised."""

    def used(self, slot: int) -> None:
        """Say that what the caller has computed up to now reads the slot, and nothing after it."""

    def seconds(self) -> float:
        """Return how long all work took, that of several threads added up."""

    def close(self) -> None:
        """End after the work that was begun."""


class ThreadLane:
    """Threads on the CPU; with 0 of them the caller does the work at once."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="day0-experts") if threads else None
        self._lock = threading.Lock()
        self._seconds = 0.0

    def start(self, work: Callable[[], None], slot: int) -> Future[Any]:
        """Begin; see `Lane`."""
        if self._pool is not None:
            return self._pool.submit(self._timed, work)
        done: Future[Any] = Future()
        try:
            self._timed(work)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits, as a pool does
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _timed(self, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        try:
            # Whoever starts a thread is in inference mode or not; the thread begins without.
            with torch.inference_mode():
                work()
        finally:
            with self._lock:
                self._seconds += time.perf_counter() - began

    def wait(self, done: Future[Any]) -> None:
        """Wait."""
        done.result()

    def used(self, slot: int) -> None:
        """Nothing: on the CPU what was called is done."""

    def seconds(self) -> float:
        """Return the sum."""
        return self._seconds

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


class StreamLane:
    """A second stream of a CUDA device. Events order it behind readers of a slot, and readers behind it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._read: dict[int, torch.cuda.Event] = {}
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._seconds = 0.0
        self._lock = threading.Lock()

    def start(self, work: Callable[[], None], slot: int) -> Future[Any]:
        """Queue; see `Lane`."""
        done: Future[Any] = Future()
        # Behind all that the caller has queued: a copy of the codes may be under way there.
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        with self._lock, torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            if slot in self._read:
                self._stream.wait_event(self._read[slot])
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record(self._stream)
            try:
                work()
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                done.set_exception(error)
                return done
            ended.record(self._stream)
            self._timed.append((began, ended))
            self._add_up()
        done.set_result(ended)
        return done

    def wait(self, done: Future[Any]) -> None:
        """Let the caller's stream wait; the host goes on."""
        torch.cuda.current_stream(self._device).wait_event(done.result())

    def used(self, slot: int) -> None:
        """Record it."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._read[slot] = event

    def seconds(self) -> float:
        """Return the sum; waits for the stream."""
        self._stream.synchronize()
        with self._lock:
            self._add_up()
        return self._seconds

    def _add_up(self) -> None:
        """Take the time of what is over, so that a long run keeps no events; nothing is waited for."""
        while self._timed and self._timed[0][1].query():
            began, ended = self._timed.popleft()
            self._seconds += began.elapsed_time(ended) / 1000

    def close(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


def lane_for(device: torch.device, threads: int) -> Lane:
    """Return the lane that fits a device."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane(threads)
