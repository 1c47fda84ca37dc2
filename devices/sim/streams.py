"""Streams and events of the simulated device. Kernels are done when they return, so order holds by itself.

Waiting is counted as the host's wait, and events read simulated time.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import torch

from day0.devices.sim.indices import current_index, index_of, set_current_index
from day0.devices.sim.state import STATE

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream"]


class _Streams(threading.local):
    """The current stream of each device in a thread."""

    def __init__(self) -> None:
        self.current: dict[int, Stream] = {}


_STREAMS = _Streams()
_DEFAULTS: dict[int, Stream] = {}


class Stream(torch.Stream):
    """A queue of a device. What is put there is done in order, at once; `with stream:` makes it the current one."""

    index: int
    _before: list[tuple[int, Stream]]

    def __new__(cls, device: object = None, priority: int = 0, **kwargs: Any) -> Self:
        """Make a stream of a device, of the current one by default. Raises RuntimeError for an unknown index."""
        made: Self = torch.Stream.__new__(cls, device="sim", priority=priority)
        made.index, made._before = index_of(device), []
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stub has a field
        """Where its work is done."""
        return torch.device("sim", self.index)

    def query(self) -> bool:
        """Say that all work is done, as it is."""
        return True

    def synchronize(self) -> None:
        """Let the host wait; it is counted."""
        STATE.counters.host_syncs += 1

    def record_event(self, event: Any = None) -> Any:
        """Record an event here, a new one if none is given, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let later work wait for an event: it has happened, since all before it is done."""

    def wait_stream(self, stream: Any) -> None:
        """Let later work wait for another stream, which has nothing left to do."""

    def __enter__(self) -> Self:
        self._before.append((current_index(), current_stream(self.index)))
        set_current_index(self.index)
        set_stream(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        index, stream = self._before.pop()
        set_stream(stream)
        set_current_index(index)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<torch.sim.Stream device={self.device}>"


class Event(torch.Event):
    """A mark in simulated time."""

    _seconds: float | None
    _timed: bool

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Self:
        """Make an event that has not been recorded."""
        made: Self = torch.Event.__new__(cls, device="sim")
        made._seconds, made._timed = None, enable_timing
        return made

    def record(self, stream: Any = None) -> None:
        """Mark this moment."""
        self._seconds = STATE.seconds

    def query(self) -> bool:
        """Say whether all work before the mark is done: always."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Let later work of a stream wait for the mark."""

    def synchronize(self) -> None:
        """Let the host wait for the mark; it is counted, if there is something to wait for."""
        STATE.counters.host_syncs += self._seconds is not None

    def elapsed_time(self, other: Any) -> float:
        """Return simulated milliseconds from this mark to another one.

        Raises ValueError: made without enable_timing, or not recorded.
        """
        if not (self._timed and other._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or other._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(other._seconds - self._seconds) * 1e3

    def __repr__(self) -> str:
        return f"<torch.sim.Event {'not recorded' if self._seconds is None else f'at {self._seconds:.9f} s'}>"


def default_stream(device: object = None) -> Stream:
    """Return the stream on which a device works when nothing else is said."""
    index = index_of(device)
    return _DEFAULTS.setdefault(index, Stream(index))


def current_stream(device: object = None) -> Stream:
    """Return the stream on which a device works now, in this thread."""
    index = index_of(device)
    return _STREAMS.current.get(index) or default_stream(index)


def set_stream(stream: Stream | None) -> None:
    """Make a stream the current one of its device; None changes nothing."""
    if stream is not None:
        _STREAMS.current[stream.index] = stream
