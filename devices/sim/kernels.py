"""The kernels of the simulated device: torch's CPU kernels, registered for PrivateUse1 where the profile grants them.

They are really registered, so that questions to the dispatcher get the answer that a vendor's backend would give.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from day0.devices.leaves import is_metadata_view
from day0.devices.profile import DeviceProfile
from day0.devices.sim.arithmetic import flush_subnormals, flushes, multiply_like
from day0.devices.sim.cost import is_free, spend
from day0.devices.sim.forward import refuse_wait_in_forward, wait_for, waits
from day0.devices.sim.own import CLOSED_COMPOSITES, OWN_KERNELS
from day0.devices.sim.random import draw, is_random
from day0.devices.sim.refuse import (
    SIZED,
    refuse_index,
    refuse_lacks,
    refuse_mixed_devices,
    refuse_size,
    refuse_what_the_host_lacks,
)
from day0.devices.sim.state import STATE
from day0.devices.sim.tensor import SimTensor, raw
from day0.devices.sim.wrap import count_transfer, place_of, wrap
from day0.reference_ops.signatures import dtype_of, resolve, tensors_in

__all__ = ["make_kernels", "register_kernels", "run_on_cpu"]

Kernel = Callable[..., Any]


def make_kernels(profile: DeviceProfile) -> dict[str, Kernel]:
    """Return a kernel for every aten overload with a CPU kernel, but for those that the profile takes away."""
    stored = frozenset(dtype_of(name) for name in profile.storage_dtypes)
    return {name: _kernel_for(resolve(name), profile, stored) for name in _granted(profile)}


def register_kernels(kernels: dict[str, Kernel]) -> torch.library.Library:
    """Register kernels for PrivateUse1. Destroying the library takes them all back.

    They stand in torch's list of kernels from Python no more than a vendor's from C++ do: what stands there is an override.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns when PrivateUse1 kernels replace composites
        for name, kernel in kernels.items():
            library.impl(name.removeprefix("aten::"), kernel, "PrivateUse1")
    torch.library._impls.difference_update(library._op_impls)
    library._op_impls.clear()
    return library


def _granted(profile: DeviceProfile) -> Iterator[str]:
    gone = {name for name, lack in profile.lacks.items() if lack.is_whole}
    on_cpu = set(torch._C._dispatch_get_registrations_for_dispatch_key("CPU"))  # one question, not one for each name
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or name in gone or name.partition(".")[0] in gone:
            continue
        if name in on_cpu or name in OWN_KERNELS or name in CLOSED_COMPOSITES or is_metadata_view(name):
            yield name


def _kernel_for(func: Any, profile: DeviceProfile, stored: frozenset[torch.dtype]) -> Kernel:
    """Make the device's kernel of one overload: refuse like a device, compute on the CPU, wrap like a device.

    What depends on the operator alone is found here, once: every call pays for the rest.
    """
    name = func.name()
    costs = not is_free(func)
    comes_alone = any(argument.name == "device" for argument in func._schema.arguments)
    compute = OWN_KERNELS.get(name) or _borrowed(func, profile)
    borrowed, named, sized, may_wait = name not in OWN_KERNELS, profile.names(name), name in SIZED, waits(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = list(tensors_in((args, kwargs)))
        # Without a tensor of the device torch comes here by itself, and not through the tensors' dispatcher.
        if comes_alone and not any(isinstance(one, SimTensor) for one in given):
            STATE.counters.calls[name] += 1
        if borrowed:
            refuse_mixed_devices(func, given, args, kwargs)
        refuse_index(args, kwargs)
        if named or (stored and not stored.isdisjoint([one.dtype for one in given])):
            refuse_lacks(func, args, kwargs)
        if sized:
            refuse_size(name, args, kwargs)
        if may_wait:
            wait = wait_for(name, args, kwargs)
            refuse_wait_in_forward(wait)
            STATE.counters.host_syncs += bool(wait)
        try:
            result = compute(*args, **kwargs)
        except RuntimeError as error:
            refuse_what_the_host_lacks(error, place_of((*args, *kwargs.values()), kwargs.get("device")))
            raise
        if costs:
            spend(func, given, args, kwargs, result)
        return result

    return kernel


def _borrowed(func: Any, profile: DeviceProfile | None = None) -> Kernel:
    """Borrow the CPU's kernel, with the arithmetic of a profile; without one it is the CPU's throughout."""
    run = func if profile is None else multiply_like(func.name(), profile, func)
    random = is_random(func)
    flush = profile is not None and flushes(func, profile)

    def compute(*args: Any, **kwargs: Any) -> Any:
        given, device = (*args, *kwargs.values()), kwargs.get("device")
        inner_kwargs = {key: _inner_value(key, value) for key, value in kwargs.items()}
        inner = [_inner_value("", value) for value in args]
        result = draw(place_of(given, device), run, inner, inner_kwargs) if random else run(*inner, **inner_kwargs)
        if flush:
            flush_subnormals(result)
        return wrap(result, given, device)

    return compute


def run_on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what a device with a CPU fallback does with an operator that it lacks: there, run, and back. Counted."""
    STATE.counters.fallbacks[func.name()] += 1
    before = STATE.counters.transfer_bytes
    given = list(tensors_in((args, kwargs)))
    refuse_mixed_devices(func, given, args, kwargs)
    for tensor in given:
        if isinstance(tensor, SimTensor):
            count_transfer(tensor, to_host=True, waits=True)
    result = _borrowed(func)(*args, **kwargs)
    for tensor in tensors_in(result):
        count_transfer(tensor, to_host=False)
    STATE.counters.fallback_bytes[func.name()] += STATE.counters.transfer_bytes - before
    return result


def _inner_value(key: str, value: Any) -> Any:
    if isinstance(value, torch.device) or (key == "device" and value is not None):
        return torch.device("cpu")
    return value if not isinstance(value, (SimTensor, list, tuple)) else raw(value)
