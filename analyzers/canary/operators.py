"""What each operator does in a pass on the device: calls, time by the device's own clock, bytes and operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.recording.costs import count_bytes, count_flops
from day0.devices.open import synchronize
from day0.devices.profile import DeviceProfile
from day0.devices.sim.cost import is_free
from day0.devices.sim.state import STATE
from day0.records import Lock, OperatorFigures
from day0.reference_ops.signatures import dtype_name, tensors_in

__all__ = ["Clock", "Event", "OperatorWatch", "Timeline", "clock_of", "operator_figures", "seconds_of"]

ClockName = Literal["sim", "events", "wall"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One call of an operator. Times are in seconds from the beginning of the pass."""

    operator: str
    dtypes: tuple[str, ...]
    begin: float
    seconds: float
    bytes: int
    flops: int
    phase: str


@dataclass(kw_only=True)
class Timeline:
    """The calls of one pass in their order."""

    clock: ClockName = "wall"
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How time is told on a device."""

    name: ClockName
    now: Callable[[], float]
    """Seconds, after all that was started has ended."""


def clock_of(device: torch.device) -> Clock:
    """Return simulated time on a simulated device, else the host's clock after a wait for the device."""
    if device.type == "sim":
        return Clock(name="sim", now=lambda: STATE.seconds)

    def waited() -> float:
        synchronize(device)
        return time.perf_counter()

    return Clock(name="wall", now=waited)


def seconds_of(device: torch.device, work: Callable[[], Any]) -> tuple[Any, float]:
    """Do something and return its result and the seconds that it took by the device's clock."""
    clock = clock_of(device)
    began = clock.now()
    result = work()
    return result, clock.now() - began


class OperatorWatch(TorchDispatchMode):
    """While active, notes every call of an operator that runs a kernel, as the model made it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.phase = ""
        self._device = device
        self._events: list[tuple[Event, Any, Any]] = []
        self._clock = clock_of(device)
        self._began = self._clock.now()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator and note what it took."""
        kwargs = kwargs or {}
        if is_free(func) or not any(one.device.type == self._device.type for one in tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        begin, start, end = 0.0, self._event(), self._event()
        if start is None:
            begin = self._clock.now()
        else:
            start.record()
        result = func(*args, **kwargs)
        if end is None:
            seconds = self._clock.now() - begin
        else:
            end.record()
            seconds = 0.0
        self._events.append((self._noted(func, args, kwargs, result, begin, seconds), start, end))
        return result

    def _event(self) -> Any:
        """Return an event of the device: reading the host's clock around short kernels would time the host."""
        return torch.cuda.Event(enable_timing=True) if self._device.type == "cuda" else None

    def _noted(self, func: Any, args: Any, kwargs: Any, result: Any, begin: float, seconds: float) -> Event:
        return Event(
            operator=func.name(),
            dtypes=tuple(dtype_name(one.dtype) for one in tensors_in((args, kwargs))),
            begin=begin - self._began,
            seconds=seconds,
            bytes=count_bytes(func, args, kwargs, result),
            flops=count_flops(func, args, kwargs, result),
            phase=self.phase,
        )

    def timeline(self) -> Timeline:
        """Return the calls so far. Events of the device are read now, after a wait."""
        if self._device.type != "cuda":
            return Timeline(clock=self._clock.name, events=[event for event, _, _ in self._events])
        synchronize(self._device)
        if not self._events:
            return Timeline(clock="events")
        first = self._events[0][1]
        timed = [
            _timed(event, first.elapsed_time(start) / 1e3, start.elapsed_time(end) / 1e3)
            for event, start, end in self._events
        ]
        return Timeline(clock="events", events=timed)


def _timed(event: Event, begin: float, seconds: float) -> Event:
    return Event(
        operator=event.operator, dtypes=event.dtypes, begin=begin, seconds=seconds,
        bytes=event.bytes, flops=event.flops, phase=event.phase,
    )  # fmt: skip


def operator_figures(timeline: Timeline, lock: Lock, profile: DeviceProfile | None) -> tuple[OperatorFigures, ...]:
    """Sum up a timeline by operator and implementation, the slowest first."""
    owners = {(entry.operator, entry.dtypes): str(entry.identity) for entry in lock.entries}
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in timeline.events:
        owner = owners.get((event.operator, event.dtypes)) or owners.get(
            (event.operator.partition(".")[0], event.dtypes)
        )
        groups.setdefault((event.operator, owner or "native"), []).append(event)
    found = [_summed(name, owner, events, timeline.clock, profile) for (name, owner), events in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.operator, one.implementation)))


def _summed(
    name: str, owner: str, events: list[Event], clock: ClockName, profile: DeviceProfile | None
) -> OperatorFigures:
    # Simulated time is whole picoseconds; what is below comes from the subtraction.
    seconds = round(sum(one.seconds for one in events), 12)
    moved, flops = sum(one.bytes for one in events), sum(one.flops for one in events)
    return OperatorFigures(
        operator=name,
        calls=len(events),
        clock=clock,
        seconds=seconds,
        worst_seconds=round(max(one.seconds for one in events), 12),
        bytes=moved,
        flops=flops,
        bandwidth_share=_share(moved, seconds, profile.bandwidth_gb_s * 1e9 if profile else 0.0),
        compute_share=_share(flops, seconds, _peak(profile, events)),
        implementation=owner,
    )


def _share(amount: int, seconds: float, peak: float) -> float | None:
    return amount / seconds / peak if amount and seconds > 0.0 and peak else None


def _peak(profile: DeviceProfile | None, events: Iterable[Event]) -> float:
    """Return the peak rate for the first floating dtype of these calls, in operations per second; 0 if not known."""
    names = [name for event in events for name in event.dtypes if "float" in name]
    return profile.tflops.get(names[0], 0.0) * 1e12 if profile is not None and names else 0.0
