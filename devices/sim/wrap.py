"""CPU results back onto the simulated device."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.sim.indices import current_index, index_of
from day0.devices.sim.state import STATE
from day0.devices.sim.tensor import SimTensor
from day0.reference_ops.signatures import dtype_name, tensors_in

__all__ = ["count_between", "count_transfer", "on_device", "place_of", "wrap"]


def wrap(result: Any, given: tuple[Any, ...], device: object = None) -> Any:
    """Wrap results; one that is an argument (in-place, out=) comes back as that argument.

    The others lie where they are asked for, else where the arguments are, else on the current device.
    """
    tensors = [one for one in tensors_in(given) if isinstance(one, SimTensor)]
    return _wrapped(result, tensors, _place(tensors, device))


def place_of(given: tuple[Any, ...], device: object = None) -> int:
    """Return the index of the device on which a call runs."""
    return _place([one for one in tensors_in(given) if isinstance(one, SimTensor)], device)


def _place(tensors: list[SimTensor], device: object) -> int:
    if isinstance(device, torch.device) and device.type == "sim":
        return index_of(device)
    return tensors[0].get_device() if tensors else current_index()


def _wrapped(result: Any, given: list[SimTensor], index: int) -> Any:
    if isinstance(result, torch.Tensor):
        for tensor in given:
            if tensor.raw is result:
                return _followed(tensor)
        return on_device(result, index)
    if isinstance(result, (list, tuple)):
        wrapped = [_wrapped(item, given, index) for item in result]
        return wrapped if isinstance(result, list) else tuple(wrapped)
    return result


def _followed(tensor: SimTensor) -> SimTensor:
    """Let the outside follow an argument that was resized, or whose strides changed, inside."""
    inner = tensor.raw
    index = tensor.get_device()
    STATE.allocated(inner, index)
    same = tensor.shape == inner.shape and tensor.stride() == inner.stride()
    if not same or tensor.storage_offset() != inner.storage_offset():
        with torch._C._DisableTorchDispatch():  # type: ignore[no-untyped-call, unused-ignore]  # the outside only
            tensor.data = SimTensor(inner, index)
    return tensor


def on_device(tensor: torch.Tensor, index: int = 0) -> SimTensor:
    """Wrap a CPU tensor as one of device `index`. Raises TypeError if the device does not hold its dtype.

    Raises NotImplementedError for sparse and nested tensors.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise NotImplementedError(
            f"the sim device holds dense tensors only, and this one is {kind}; keep it dense (to_dense(), sparse=False, "
            "nn.TransformerEncoder(..., enable_nested_tensor=False))"
        )
    if tensor.dtype not in STATE.held:
        name = dtype_name(tensor.dtype)
        raise TypeError(
            f"Trying to make a {name} tensor, but the sim device '{STATE.profile.name}' does not hold {name}"
        )
    return SimTensor(tensor, index)


def count_transfer(tensor: torch.Tensor, *, to_host: bool, waits: bool = False) -> None:
    """Count one tensor on its way between host and device, and whether the host waits for it."""
    STATE.counters.host_syncs += waits
    size = _moved(tensor)
    if not to_host:
        STATE.counters.to_device += 1
        STATE.counters.to_device_bytes += size


def count_between(tensor: torch.Tensor) -> None:
    """Count one tensor on its way from one device to another one. The host does not wait for it."""
    STATE.counters.between += 1
    STATE.counters.between_bytes += _moved(tensor)


def _moved(tensor: torch.Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    STATE.counters.transfers += 1
    STATE.counters.transfer_bytes += size
    return size
