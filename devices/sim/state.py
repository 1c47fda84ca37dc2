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
from day0.devices.sim.memory import DeviceMemory
from day0.reference_ops.signatures import dtype_of

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
    """Transfers from the host; the others went to it, or between devices."""
    to_device_bytes: int = 0
    between: int = 0
    """Transfers from one device to another one, over the link."""
    between_bytes: int = 0
    picoseconds: Counter[str] = field(default_factory=Counter)
    """Simulated time of the device's own kernels, by operator. Whole numbers: a sum of floats would depend on what ran
    before, and the same stage would show another time after a restart."""
    flops: int = 0
    moved_bytes: int = 0
    """What kernels read and wrote in the device's memory."""

    def times(self, profile: DeviceProfile) -> tuple[float, float, float]:
        """Return the simulated seconds in kernels, waits and transfers."""
        link = 0.0 if profile.link_gb_s is None else self.transfer_bytes / (profile.link_gb_s * 1e9)
        return self.picoseconds.total() * 1e-12, self.host_syncs * profile.sync_us * 1e-6, link

    def frozen(self, profile: DeviceProfile) -> SimCounters:
        """Return all that was counted, as it is now."""
        kernels, waits, link = self.times(profile)
        return SimCounters(
            calls=dict(self.calls),
            fallbacks=dict(self.fallbacks),
            fallback_bytes=dict(self.fallback_bytes),
            host_syncs=self.host_syncs,
            to_device=self.to_device,
            to_device_bytes=self.to_device_bytes,
            to_host=self.transfers - self.to_device - self.between,
            to_host_bytes=self.transfer_bytes - self.to_device_bytes - self.between_bytes,
            between=self.between,
            between_bytes=self.between_bytes,
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
    between: int
    between_bytes: int
    seconds: dict[str, float]
    flops: int
    moved_bytes: int
    kernel_seconds: float
    sync_seconds: float
    transfer_seconds: float
    total_seconds: float


class _Kept(weakref.ref[torch.UntypedStorage]):
    """A storage that is counted. weakref.finalize would do the same at several times the cost, for every result."""

    __slots__ = ("key",)
    key: int


class SimState:
    """The simulated devices of a process. They are closed until a profile is opened."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.kernels: dict[str, Callable[..., Any]] = {}
        """The device's own kernels by overload; torch may have others registered over them."""
        self.inside = 0
        """How many kernels of somebody's own are running, one within the other: they count as a whole."""
        self.held: frozenset[torch.dtype] = frozenset()
        """What tensors may hold."""
        self._profile: DeviceProfile | None = None
        self._memory: dict[int, DeviceMemory] = {}
        self._storages: dict[int, tuple[int, int, _Kept]] = {}
        """Device and bytes of each storage, and what tells when it is gone."""
        self._seconds_before = 0.0
        # Reentrant: a storage may die, and come back here, while another one is being counted.
        self._lock = threading.RLock()

    @property
    def profile(self) -> DeviceProfile:
        """The open profile."""
        if self._profile is None:
            raise RuntimeError("the simulated device is not open: call day0.devices.sim.device.open_sim(profile)")
        return self._profile

    @property
    def allocated_bytes(self) -> int:
        """What is in use on all devices."""
        return sum(one.allocated for one in self._memory.values())

    @property
    def seconds(self) -> float:
        """Simulated time since the first profile was opened; counting anew does not turn it back."""
        now = 0.0 if self._profile is None else sum(self.counters.times(self._profile))
        return self._seconds_before + now

    def memory(self, index: int) -> DeviceMemory:
        """Return the account of one device."""
        return self._memory.setdefault(index, DeviceMemory(index=index))

    def switch(self, profile: DeviceProfile, kernels: dict[str, Callable[..., Any]]) -> None:
        """Make a profile with its kernels the open one."""
        self.reset_counters()  # the time until now passed at the old profile's rates
        self._profile, self.kernels = profile, kernels
        self.held = frozenset(dtype_of(name) for name in profile.dtypes)

    def reset_counters(self) -> None:
        """Start counting anew."""
        self._seconds_before = self.seconds
        self.counters = Counters()
        for one in self._memory.values():
            one.reset_peaks()

    def allocated(self, raw: torch.Tensor, index: int) -> None:
        """Count the memory below a tensor, once for all its views, until its storage is gone.

        A storage that is known and has been resized since is counted with its new size.
        Raises torch.OutOfMemoryError if the profile has not that much.
        """
        storage = raw.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            known = self._storages.get(key)
            if known is not None and known[1] == size:
                return
            more = size - (known[1] if known else 0)
            self.refuse_over_limit(more, index)
            kept = known[2] if known is not None else _Kept(storage, self._released)
            kept.key = key
            self._storages[key] = (index, size, kept)
            self.memory(index).take(more)

    def refuse_over_limit(self, size: int, index: int) -> None:
        """Raise torch.OutOfMemoryError if `size` more bytes do not fit."""
        if self._profile is not None:
            self.memory(index).refuse_over(int(self._profile.memory_gib * 2**30), size)

    def _released(self, kept: weakref.ref[torch.UntypedStorage]) -> None:
        with self._lock:
            found = self._storages.pop(kept.key, None) if isinstance(kept, _Kept) else None
            if found is not None:
                self._memory[found[0]].give_back(found[1])


STATE: SimState = SimState()
