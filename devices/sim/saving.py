"""Storages of the simulated device, so that torch.save, torch.load and safetensors can take its tensors."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch

from day0.devices.sim.indices import index_of
from day0.devices.sim.state import STATE

__all__ = ["SimStorage", "deep_copy", "reduced", "register_loading", "storage_on_device"]

_BEFORE_TORCHS_OWN = 9


class SimStorage(torch.UntypedStorage):
    """The memory below a tensor on the device. It lies in the host's memory, and says where it is simulated to lie."""

    index: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stub has a field
        """The simulated place."""
        return torch.device("sim", self.index)

    def clone(self) -> SimStorage:
        """Copy the memory, on the same device."""
        return storage_on_device(torch.UntypedStorage(self.nbytes()).copy_(self), self.index)


def storage_on_device(storage: torch.UntypedStorage, index: int) -> SimStorage:
    """Return the same storage as one of device `index`; there is one object for it, however often it is asked for."""
    made: Any = storage
    if not isinstance(storage, SimStorage):
        made.__class__ = SimStorage  # torch keeps one Python object for a storage: this one stays
        made.index = index
    found: SimStorage = made
    return found


def reduced(tensor: torch.Tensor, storage: SimStorage) -> Any:
    """Return what torch itself saves for a tensor: its storage, tagged with the device, and how it lies there."""
    hooks: OrderedDict[str, Any] = OrderedDict()
    if isinstance(tensor, torch.nn.Parameter):
        return torch._utils._rebuild_parameter, (tensor.detach(), tensor.requires_grad, hooks)
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=tensor.dtype, _internal=True)
    place = tensor.storage_offset(), tuple(tensor.size()), tensor.stride()
    return torch._utils._rebuild_tensor_v2, (typed, *place, tensor.requires_grad, hooks)


def deep_copy(tensor: Any, storage: SimStorage, memo: dict[int, Any]) -> torch.Tensor:
    """Return a CPU tensor over a copy of the storage, one copy for all its views. Raises RuntimeError as torch does."""
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    copied = copy.deepcopy(storage, memo)
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(copied, *place)


def register_loading() -> None:
    """Let torch.load put storages on the device; by itself it asks a backend in C++, which is not there, and crashes."""
    torch.serialization.register_package(_BEFORE_TORCHS_OWN, _tag, _restore)


def _tag(storage: Any) -> str | None:
    return str(storage.device) if isinstance(storage, SimStorage) else None


def _restore(storage: Any, location: str) -> Any:
    if location.partition(":")[0] != "sim":
        return None
    index = index_of(location)
    size = storage.nbytes()
    STATE.memory(index).refuse_over(int(STATE.profile.memory_gib * 2**30), size)
    STATE.counters.transfers += 1
    STATE.counters.transfer_bytes += size
    STATE.counters.to_device += 1
    STATE.counters.to_device_bytes += size
    return storage_on_device(storage, index)
