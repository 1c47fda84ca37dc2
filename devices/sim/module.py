"""What `torch.sim` is: the questions that torch and models ask of a device module."""

from __future__ import annotations

from types import TracebackType

import torch

from day0.devices.sim.autocast import autocast_dtypes
from day0.devices.sim.indices import current_index, index_of, set_current_index
from day0.devices.sim.memory import DeviceMemory
from day0.devices.sim.random import SimGenerator, default_generator
from day0.devices.sim.state import STATE, SimCounters
from day0.devices.sim.streams import Event, Stream, current_stream, default_stream, set_stream

__all__ = ["SimModule"]


class _Device:
    """`with torch.sim.device(1):` makes a device the current one for a while."""

    def __init__(self, device: object) -> None:
        self.idx = index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(current_index())
        set_current_index(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_current_index(self._before.pop())


class _StreamContext:
    """`with torch.sim.stream(s):`, which takes None for no change."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


class SimModule:
    """Devices, random numbers, streams, memory and counters. `device` is an index, `sim:1`, or None for the current."""

    _initialized = True
    """What torch.utils.checkpoint looks at before it keeps the states of random numbers."""
    device = _Device
    stream = _StreamContext
    Stream = Stream
    Event = Event
    Generator = SimGenerator
    current_stream = staticmethod(current_stream)
    default_stream = staticmethod(default_stream)
    set_stream = staticmethod(set_stream)

    def is_initialized(self) -> bool:
        """Return True: nothing has to be started."""
        return True

    def is_available(self) -> bool:
        """Return True."""
        return True

    # ------------------------------------------------------------------------------------------ devices

    def current_device(self) -> int:
        """Return the index that `sim` alone means in this thread."""
        return current_index()

    def set_device(self, device: object) -> None:
        """Make a device the current one of this thread. Raises RuntimeError for an index that there is not."""
        set_current_index(index_of(device))

    def device_count(self) -> int:
        """Return how many devices the profile has."""
        return STATE.profile.devices

    def get_device_name(self, device: object = None) -> str:
        """Return the profile's title. Raises RuntimeError for an index that there is not."""
        index_of(device)
        return STATE.profile.title

    def _is_in_bad_fork(self) -> bool:
        return False

    def synchronize(self, device: object = None) -> None:
        """Kernels are done when they return; the host's wait is counted all the same."""
        index_of(device)
        STATE.counters.host_syncs += 1

    # ----------------------------------------------------------------------------------- random numbers

    @property
    def default_generators(self) -> tuple[SimGenerator, ...]:
        """The generators of all devices, from which kernels draw that are given none."""
        return tuple(default_generator(index) for index in range(STATE.profile.devices))

    def manual_seed(self, seed: int) -> None:
        """Seed the current device."""
        default_generator(current_index()).manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed all devices, as torch.manual_seed does."""
        for one in self.default_generators:
            one.manual_seed(int(seed))

    def seed(self) -> int:
        """Seed the current device with a number that nobody knows, and return it."""
        return int(default_generator(current_index()).seed())

    def seed_all(self) -> None:
        """Seed all devices with one number that nobody knows."""
        self.manual_seed_all(self.seed())

    def initial_seed(self) -> int:
        """Return the seed of the current device."""
        return int(default_generator(current_index()).initial_seed())

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """Return the state of a device's generator, as bytes on the host."""
        return default_generator(index_of(device)).get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: object = None) -> None:
        """Set the state of a device's generator."""
        default_generator(index_of(device)).set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the states of all generators."""
        return [one.get_state() for one in self.default_generators]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        """Set the states of all generators."""
        for one, state in zip(self.default_generators, new_states, strict=True):
            one.set_state(state)

    # ------------------------------------------------------------------------------------------- memory

    def memory_allocated(self, device: object = None) -> int:
        """Return the bytes in use."""
        return _memory(device).allocated

    def max_memory_allocated(self, device: object = None) -> int:
        """Return the most bytes that were in use at once."""
        return _memory(device).peak

    def memory_reserved(self, device: object = None) -> int:
        """Return the bytes that a caching allocator would hold."""
        return _memory(device).reserved

    def max_memory_reserved(self, device: object = None) -> int:
        """Return the most bytes that a caching allocator would have held."""
        return _memory(device).peak_reserved

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Let the peaks begin at what is in use now."""
        _memory(device).reset_peaks()

    def memory_stats(self, device: object = None) -> dict[str, int]:
        """Return the same figures under torch's names for CUDA."""
        found = _memory(device)
        return {
            "allocated_bytes.all.current": found.allocated,
            "allocated_bytes.all.peak": found.peak,
            "reserved_bytes.all.current": found.reserved,
            "reserved_bytes.all.peak": found.peak_reserved,
        }

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return free and total bytes."""
        total = int(STATE.profile.memory_gib * 2**30)
        return total - _memory(device).allocated, total

    def empty_cache(self) -> None:
        """Give back what is reserved and not in use, on all devices."""
        for index in range(STATE.profile.devices):
            found = STATE.memory(index)
            found.reserved = found.allocated

    # ----------------------------------------------------------------------------------------- counters

    def counters(self) -> SimCounters:
        """Return what was counted since the device was opened or the counters were reset, as it is now."""
        return STATE.counters.frozen(STATE.profile)

    def fallback_calls(self) -> int:
        """Return how many calls the device itself has sent to the CPU, without a copy of all that was counted."""
        return STATE.counters.fallbacks.total()

    def reset_counters(self) -> None:
        """Start to count anew; peaks begin at what is in use now."""
        STATE.reset_counters()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes that autocast may take: the narrow ones that the profile holds."""
        return autocast_dtypes(STATE.profile.dtypes)


def _memory(device: object) -> DeviceMemory:
    return STATE.memory(index_of(device))
