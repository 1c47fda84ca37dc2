"""Open the simulated device: make torch know `sim`, then register the kernels that a profile grants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from day0.devices.profile import DeviceProfile
from day0.devices.sim.autocast import register_autocast
from day0.devices.sim.backward import explain_backward
from day0.devices.sim.compiling import stay_out_of_tracing
from day0.devices.sim.dispatch import dispatch
from day0.devices.sim.forward import watch_forward
from day0.devices.sim.guard import SimGuard
from day0.devices.sim.kernels import make_kernels, register_kernels
from day0.devices.sim.module import SimModule
from day0.devices.sim.pinning import register_pinning
from day0.devices.sim.random import know_generators
from day0.devices.sim.saving import register_loading
from day0.devices.sim.state import STATE, Counters
from day0.devices.sim.tensor import SimTensor
from day0.errors import Day0Error

__all__ = ["close_sim", "counters", "native_kernel", "open_sim"]

_LOCK = threading.Lock()
_LIBRARY: list[torch.library.Library] = []
"""Kernels of the open profile."""
_LASTING: list[torch.library.Library] = []
"""What does not depend on a profile."""


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
    module: Any = SimModule()
    _setup_privateuseone_for_python_backend("sim", backend_module=module, device_guard=SimGuard())
    know_generators()
    _LASTING.extend([*register_autocast(), register_pinning()])
    register_loading()
    explain_backward()
    stay_out_of_tracing([vars(SimTensor)["__torch_dispatch__"].__func__], [dispatch, SimTensor.__new__])


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
