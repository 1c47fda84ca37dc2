"""Open the torch device that a profile describes, and ask it simple things whatever its type."""

from __future__ import annotations

import importlib

import torch

from day0.devices.profile import DeviceProfile
from day0.errors import USER_ERRORS, Day0Error

__all__ = [
    "device_count",
    "device_counts",
    "device_index",
    "device_title",
    "fallback_calls",
    "memory_allocated",
    "open_torch_device",
    "synchronize",
    "use_device",
]


def open_torch_device(profile: DeviceProfile) -> torch.device:
    """Return the device, ready for use.

    Raises Day0Error if its module cannot be imported, or if torch has no such device here.
    """
    if profile.torch_device == "sim":
        from day0.devices.sim.device import open_sim

        return open_sim(profile)
    if profile.import_module is not None:
        _import(profile, profile.import_module)
    try:
        device = torch.device(profile.torch_device)
        torch.empty(1, device=device)
    except USER_ERRORS as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise Day0Error(
            f"device '{profile.torch_device}'",
            f"torch {torch.__version__} cannot use it here: {first}",
            hint="install a build of torch for it, or take --device sim; see `day0 device list`",
        ) from None
    return device


def _import(profile: DeviceProfile, module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Day0Error(
            f"device profile {profile.name}",
            f"import_module '{module}' is not installed (no module '{error.name}')",
            hint=f"install the vendor's package that provides {module}",
        ) from None
    except USER_ERRORS as error:
        raise Day0Error(
            f"device profile {profile.name}",
            f"import_module '{module}' fails: {type(error).__name__}: {error}",
            hint=f"try it alone: python -c 'import {module}'",
        ) from None


def device_count(device: torch.device) -> int:
    """Return how many devices of this type there are; one CPU."""
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return int(count()) if count is not None and device.type != "cpu" else 1


def device_index(device: torch.device) -> int:
    """Return which device of its type it is; the current one where it was named without an index, 0 for a CPU."""
    ask = getattr(getattr(torch, device.type, None), "current_device", None)
    if device.index is not None or ask is None or device.type == "cpu":
        return device.index or 0
    return int(ask())


def use_device(device: torch.device, number: int | None) -> torch.device:
    """Make one device of a type the current one of this process, the given one, counted round, and return it.

    Where there is one device, and without a number, it stays the one it is.
    """
    count = device_count(device)
    if number is None or count < 2:
        return device
    getattr(torch, device.type).set_device(number % count)
    return device if device.index is None else torch.device(device.type, number % count)


def synchronize(device: torch.device) -> None:
    """Wait until everything on the device is done."""
    module = getattr(torch, device.type, None)
    wait = getattr(module, "synchronize", None)
    if wait is not None:
        wait()


def memory_allocated(device: torch.device) -> int:
    """Return allocated bytes, 0 where the device does not count."""
    module = getattr(torch, device.type, None)
    count = getattr(module, "memory_allocated", None)
    return int(count()) if count is not None else 0


def device_title(device: torch.device) -> str:
    """Return what the device calls itself, such as a card's name; its torch type where it has no name."""
    ask = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return str(ask(device)) if ask is not None else device.type


def fallback_calls(device: torch.device) -> int:
    """Return how many calls the device itself has sent to the CPU so far; 0 for a device that does not count."""
    count = getattr(getattr(torch, device.type, None), "fallback_calls", None)
    return int(count()) if count is not None else 0


def device_counts(device: torch.device) -> dict[str, float]:
    """Return what a simulated device has counted so far, by name; empty for a device that does not count."""
    count = getattr(getattr(torch, device.type, None), "counters", None)
    if count is None:
        return {}
    found = count()
    return {
        "sim_fallbacks": float(sum(found.fallbacks.values())),
        "sim_host_syncs": float(found.host_syncs),
        "sim_kernel_seconds": float(found.kernel_seconds),
        "sim_seconds": float(found.total_seconds),
        "sim_transfer_bytes": float(found.to_device_bytes + found.to_host_bytes),
    }
