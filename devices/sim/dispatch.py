"""The small dispatcher below the tensors of the simulated device.

It follows torch's own order of precedence for a backend: the kernel that is registered for PrivateUse1, else the
composite kernel that torch would take, else the backend's fallback, else torch's own refusal. So what a profile takes
away behaves as on a vendor's device whose library does not have it: composites still run, and their leaves fail where
they must.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from day0.devices.leaves import call_at, composite_key, composite_kind
from day0.devices.numbers import numbers_as_tensors
from day0.devices.sim.cost import run_as_one
from day0.devices.sim.planting import PLANTED, run_planted
from day0.devices.sim.state import STATE

__all__ = ["dispatch"]

_HAS_KERNEL = torch._C._dispatch_has_kernel_for_dispatch_key
_COMPUTED = torch._C._dispatch_get_computed_kernel_for_dispatch_key
_KEYS = torch._C.DispatchKey
_OWN_PLACE = f"registered at {Path(__file__).with_name('kernels.py')}:"
"""How torch describes a kernel that `register_kernels` has registered."""
_OWN: set[str] = set()
"""Operators of which torch was once seen to take the device's own kernel."""
_OVERRIDDEN: set[str] = set()
"""Operators that once had another one: torch's list forgets the second library of two, when the first is collected."""


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator the way torch's dispatcher would for this backend, through the faults that are planted on it."""
    STATE.counters.calls[func.name()] += 1
    planted = PLANTED.get()
    if planted is not None:
        return run_planted(planted, func, args, kwargs, _dispatch)
    return _dispatch(func, args, kwargs)


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.name()
    args = numbers_as_tensors(func, args)
    native = STATE.kernels.get(name)
    if native is not None and not _is_overridden(name):
        return native(*args, **kwargs)
    if _HAS_KERNEL(name, "PrivateUse1"):
        return run_as_one(func, partial(_at_private_use, func), args, kwargs)
    kind = composite_kind(name)
    if kind is not None:
        return call_at(func, getattr(_KEYS, composite_key(kind)), args, kwargs)
    if STATE.profile.fallback == "cpu" and _HAS_KERNEL(name, "CPU"):
        from day0.devices.sim.kernels import run_on_cpu  # kernels make tensors, which dispatch

        return run_on_cpu(func, args, kwargs)
    with torch._C._DisableTorchDispatch():  # type: ignore[no-untyped-call, unused-ignore]  # torch raises its own error
        return func(*args, **kwargs)


def _at_private_use(func: Any, *args: Any, **kwargs: Any) -> Any:
    return call_at(func, _KEYS.PrivateUse1, args, kwargs)


@cache
def _listed_as(name: str) -> str:
    return f"{name.replace('::', '/')}/PrivateUse1"


def _is_overridden(name: str) -> bool:
    """Say whether somebody has registered a kernel over the device's own, and not taken it back yet.

    torch must not be asked to run the device's kernel itself: where an argument is a tensor subclass, it calls the
    Python kernel that was registered last for the operator, also after that one's library has been destroyed. And torch
    is asked which kernel it would take only where that is in doubt: each such question keeps 48 bytes for ever.
    """
    if _listed_as(name) in torch.library._impls:
        _OVERRIDDEN.add(name)
        return True
    if name in _OWN and name not in _OVERRIDDEN:
        return False
    found = _OWN_PLACE not in repr(_COMPUTED(name, _KEYS.PrivateUse1))
    (_OVERRIDDEN if found else _OWN).add(name)
    return found
