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

__all__ = ["STATE", "Counters", "SimState"]


@dataclass(kw_only=True, slots=True)
class Counters:
    """What happened since the counters were reset."""

    calls: Counter[str] = field(default_factory=Counter)
    """Operator calls, composites included."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Calls that the device itself sent to the CPU."""
    host_syncs: int = 0
    """How often the host had to wait: for a value, a size, or a copy to the host."""
    transfers: int = 0
    transfer_bytes: int = 0


class SimState:
    """The one simulated device of a process. It is closed until a profile is opened."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.kernels: dict[str, Callable[..., Any]] = {}
        """The device's own kernels by overload; torch may have others registered over them."""
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
        self.peak_bytes = self.allocated_bytes

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

    def refuse_over_limit(self, size: int) -> None:
        """Raise torch.OutOfMemoryError if `size` more bytes do not fit."""
        if self._profile is None:
            return
        limit = int(self._profile.memory_gib * 2**30)
        if self.allocated_bytes + size > limit:
            raise torch.OutOfMemoryError(
                f"sim out of memory. Tried to allocate {_figure(size)}. Device 0 has a total capacity of "
                f"{_figure(limit)} of which {_figure(limit - self.allocated_bytes)} is free."
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
