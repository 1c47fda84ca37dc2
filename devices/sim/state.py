"""What the simulated device keeps: the open profile, its kernels, counters and memory."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from day0.devices.profile import DeviceProfile

__all__ = ["STATE", "Counters", "SimCounters", "SimState"]


@dataclass(kw_only=True, slots=True)
class Counters:
    """What happened since the counters were reset."""

    calls: Counter[str] = field(default_factory=Counter)
    """Operator calls, composites included."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Calls that the device itself sent to the CPU, of every namespace."""
    fallback_bytes: Counter[str] = field(default_factory=Counter)
    """What these calls moved, there and back, by operator."""
    host_syncs: int = 0
    """How often the host had to wait: for a value, a size, or a copy to the host."""
    transfers: int = 0
    transfer_bytes: int = 0
    to_device: int = 0
    """Transfers from the host; the others went to it."""
    to_device_bytes: int = 0
    picoseconds: Counter[str] = field(default_factory=Counter)
    """Simulated time of the device's own kernels, by operator. Whole numbers: a sum of floats would depend on what ran
    before, and the same stage would show another time after a restart."""
    flops: int = 0
    moved_bytes: int = 0
    """What kernels read and wrote in the device's memory."""

    def frozen(self, profile: DeviceProfile) -> SimCounters:
        """Return all that was counted, as it is now."""
        link = 0.0 if profile.link_gb_s is None else self.transfer_bytes / (profile.link_gb_s * 1e9)
        waits = self.host_syncs * profile.sync_us * 1e-6
        kernels = self.picoseconds.total() * 1e-12
        return SimCounters(
            calls=dict(self.calls),
            fallbacks=dict(self.fallbacks),
            fallback_bytes=dict(self.fallback_bytes),
            host_syncs=self.host_syncs,
            to_device=self.to_device,
            to_device_bytes=self.to_device_bytes,
            to_host=self.transfers - self.to_device,
            to_host_bytes=self.transfer_bytes - self.to_device_bytes,
            seconds={name: value * 1e-12 for name, value in self.picoseconds.items()},
            flops=self.flops,
            moved_bytes=self.moved_bytes,
            kernel_seconds=kernels,
            sync_seconds=waits,
            transfer_seconds=link,
            total_seconds=kernels + waits + link,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SimCounters:
    """What was counted up to one moment; see `Counters`. Times are simulated, from the open profile."""

    calls: dict[str, int]
    fallbacks: dict[str, int]
    fallback_bytes: dict[str, int]
    host_syncs: int
    to_device: int
    to_device_bytes: int
    to_host: int
    to_host_bytes: int
    seconds: dict[str, float]
    flops: int
    moved_bytes: int
    kernel_seconds: float
    sync_seconds: float
    transfer_seconds: float
    total_seconds: float


class SimState:
    """The one simulated device of a process. It is closed until a profile is opened."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.reserved_bytes = 0
        """What a caching allocator would keep: it gives nothing back until it is asked to."""
        self.peak_reserved_bytes = 0
        self.kernels: dict[str, Callable[..., Any]] = {}
        """The device's own kernels by overload; torch may have others registered over them."""
        self.inside = 0
        """How many kernels of somebody's own are running, one within the other: they count as a whole."""
        self._profile: DeviceProfile | None = None
        self._storages: dict[int, int] = {}
        # Reentrant: a storage may die, and come back here, while another one is being counted.
        self._lock = threading.RLock()

    @property
    def profile(self) -> DeviceProfile:
        """The open profile."""
        if self._profile is None:
            raise RuntimeError("the simulated device is not open: call day0.devices.sim.device.open_sim(profile)")
        return self._profile

    def switch(self, profile: DeviceProfile, kernels: dict[str, Callable[..., Any]]) -> None:
        """Make a profile with its kernels the open one."""
        self._profile, self.kernels = profile, kernels

    def reset_counters(self) -> None:
        """Start counting anew."""
        self.counters = Counters()
        self.reset_peaks()

    def reset_peaks(self) -> None:
        """Let the peaks begin at what is in use now."""
        self.peak_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def empty_cache(self) -> None:
        """Give back what is reserved and not in use."""
        self.reserved_bytes = self.allocated_bytes

    def allocated(self, raw: torch.Tensor) -> None:
        """Count the memory below a tensor, once for all its views, until its storage is gone.

        A storage that is known and has been resized since is counted with its new size.
        Raises torch.OutOfMemoryError if the profile has not that much.
        """
        storage = raw.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            known = self._storages.get(key)
            if known == size:
                return
            self.refuse_over_limit(size - (known or 0))
            if known is None:
                weakref.finalize(storage, self._released, key).atexit = False
            self._storages[key] = size
            self.allocated_bytes += size - (known or 0)
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
            self.reserved_bytes = max(self.reserved_bytes, self.allocated_bytes)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def refuse_over_limit(self, size: int) -> None:
        """Raise torch.OutOfMemoryError if `size` more bytes do not fit."""
        if self._profile is None:
            return
        limit = int(self._profile.memory_gib * 2**30)
        if self.allocated_bytes + size > limit:
            raise torch.OutOfMemoryError(
                f"sim out of memory. Tried to allocate {_figure(size)}. Device 0 has a total capacity of "
                f"{_figure(limit)} of which {_figure(limit - self.allocated_bytes)} is free. "
                f"{_figure(self.allocated_bytes)} is allocated, {_figure(self.peak_bytes)} at its peak."
            )

    def _released(self, key: int) -> None:
        with self._lock:
            self.allocated_bytes -= self._storages.pop(key, 0)


def _figure(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


STATE: SimState = SimState()
