"""Open the simulated device: make torch know `sim`, then register the kernels that a profile grants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from day0.devices.profile import DeviceProfile
from day0.devices.sim.forward import watch_forward
from day0.devices.sim.kernels import make_kernels, register_kernels
from day0.devices.sim.state import STATE, Counters, SimCounters
from day0.errors import Day0Error

__all__ = ["close_sim", "counters", "native_kernel", "open_sim"]

_LOCK = threading.Lock()
_LIBRARY: list[torch.library.Library] = []


class _SimModule:
    """What `torch.sim` is: the questions that torch and models ask of a device module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        """Take sim:0, of which there is one. Raises RuntimeError for another index."""
        index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        if index not in (None, 0):
            raise RuntimeError(f"sim error: invalid device ordinal {index}; there is one device, sim:0")

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: object = None) -> str:
        return STATE.profile.title

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        """Random kernels draw from the CPU's generator, which torch.manual_seed has set."""

    def manual_seed_all(self, seed: int) -> None:
        """See manual_seed."""

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """Return the state of the CPU's generator, see manual_seed."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: object = None) -> None:
        """Set the state of the CPU's generator, see manual_seed."""
        torch.set_rng_state(new_state)

    def synchronize(self, device: object = None) -> None:
        """Kernels are done when they return; the host's wait is counted all the same."""
        STATE.counters.host_syncs += 1

    def memory_allocated(self, device: object = None) -> int:
        return STATE.allocated_bytes

    def max_memory_allocated(self, device: object = None) -> int:
        return STATE.peak_bytes

    def memory_reserved(self, device: object = None) -> int:
        return STATE.reserved_bytes

    def max_memory_reserved(self, device: object = None) -> int:
        return STATE.peak_reserved_bytes

    def reset_peak_memory_stats(self, device: object = None) -> None:
        STATE.reset_peaks()

    def memory_stats(self, device: object = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": STATE.allocated_bytes,
            "allocated_bytes.all.peak": STATE.peak_bytes,
            "reserved_bytes.all.current": STATE.reserved_bytes,
            "reserved_bytes.all.peak": STATE.peak_reserved_bytes,
        }

    def counters(self) -> SimCounters:
        """Return what was counted since the device was opened or the counters were reset, as it is now."""
        return STATE.counters.frozen(STATE.profile)

    def reset_counters(self) -> None:
        """Start to count anew; peaks begin at what is in use now."""
        STATE.reset_counters()

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return free and total bytes."""
        total = int(STATE.profile.memory_gib * 2**30)
        return total - STATE.allocated_bytes, total

    def empty_cache(self) -> None:
        """Give back what is reserved and not in use."""
        STATE.empty_cache()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return nothing: the device has no autocast kernels, and torch then says that it disables autocast."""
        return []


def open_sim(profile: DeviceProfile) -> torch.device:
    """Open the simulated device with a profile and return it.

    Opening another profile switches the kernels; tensors that exist stay valid. The registration in torch lasts
    until the process ends, since torch has no way to take a backend back.
    Raises Day0Error if another backend has taken PrivateUse1 in this process.
    """
    with _LOCK:
        _register_backend()
        if not _LIBRARY or STATE.profile != profile:
            while _LIBRARY:
                _LIBRARY.pop()._destroy()
            STATE.switch(profile, make_kernels(profile))
            _LIBRARY.append(register_kernels(STATE.kernels))
            watch_forward(wanted=bool(profile.forward_refuses))
        STATE.reset_counters()
    return torch.device("sim", 0)


def _register_backend() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name == "sim":
        return
    if name != "privateuseone":
        raise Day0Error(
            "device 'sim'",
            f"this process already has the out-of-tree device '{name}', and torch allows one",
            hint="use the simulated device in a process of its own",
        )
    module: Any = _SimModule()
    _setup_privateuseone_for_python_backend("sim", backend_module=module)


def close_sim() -> None:
    """Take the kernels away; every operator on `sim` then fails as on a device without a library."""
    with _LOCK:
        while _LIBRARY:
            _LIBRARY.pop()._destroy()
        STATE.kernels = {}


def native_kernel(op: str) -> Callable[..., Any] | None:
    """Return the device's own kernel of `aten::name.overload`, whatever is registered over it; None if it has none.

    Use this, not `torch.library.get_kernel`, to call the kernel below an override: where an argument is a tensor
    subclass, torch sends a kernel written in Python back to the one that was registered last.
    """
    return STATE.kernels.get(op)


def counters() -> Counters:
    """Return what was counted since the profile was opened."""
    return STATE.counters
