"""A tensor on the simulated device: a wrapper around a CPU tensor of the same shape, strides and offset."""

from __future__ import annotations

import copy
import weakref
from functools import cache
from typing import Any, Self, TypeVar

import torch

from day0.devices.sim.compiling import refuse_compiled
from day0.devices.sim.dispatch import dispatch
from day0.devices.sim.saving import SimStorage, deep_copy, reduced, storage_on_device
from day0.devices.sim.state import STATE

__all__ = ["SimTensor", "raw"]

_DATA: Any = torch.Tensor.data
_STORAGE: Any = torch.Tensor.untyped_storage

Sim = TypeVar("Sim", bound="SimTensor")

_OUTSIDE: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
"""The storage that torch sees of a tensor on the device, by that of the CPU tensor within."""


class SimTensor(torch.Tensor):
    """Wraps a CPU tensor `raw`; views share its storage. Operators go through `dispatch`."""

    raw: torch.Tensor
    # No conversion of results by torch: kernels wrap what they return.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's documented idiom

    @staticmethod
    def __new__(cls: type[Self], raw: torch.Tensor, index: int = 0) -> Self:
        """Wrap `raw`, whose memory counts as that of device `index` from now on.

        Raises torch.OutOfMemoryError if the device has not that much.
        """
        STATE.allocated(raw, index)
        # A view of a tensor from outside of inference mode is none of that mode's: torch refuses to track it otherwise.
        inference = raw.is_inference()
        same = inference == torch.is_inference_mode_enabled()
        if same:
            made = _made(cls, raw, index)
        else:
            with torch.inference_mode(inference):
                made = _made(cls, raw, index)
        made.raw = raw
        _share_storage(made)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub forgets `func`
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator. Raises RuntimeError within torch.compile, but for its backend `eager`."""
        refuse_compiled(func)
        return dispatch(func, args, kwargs or {})

    def _get_data(self) -> torch.Tensor:
        data: torch.Tensor = _DATA.__get__(self)
        return data

    def _set_data(self, value: torch.Tensor) -> None:
        # torch exchanges the outside only: `parameter.data = x` is how modules change dtype in place.
        _DATA.__set__(self, value)
        if isinstance(value, SimTensor):
            self.raw = value.raw

    data = property(_get_data, _set_data)

    def untyped_storage(self) -> SimStorage:
        """Return the memory below, which views share."""
        return storage_on_device(self.raw.untyped_storage(), self.get_device())

    def data_ptr(self) -> int:
        """Return where the values lie: aliases are recognised by it."""
        return self.raw.data_ptr()

    def new_tensor(
        self,
        data: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> torch.Tensor:
        """Make a tensor from numbers, on the same device if no other one is asked for. torch forgets the index here."""
        place, kind = self.device if device is None else device, self.dtype if dtype is None else dtype
        if isinstance(data, torch.Tensor):
            return data.detach().to(place, kind, copy=True).requires_grad_(requires_grad)
        return torch.tensor(data, dtype=kind, device=place, requires_grad=requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the memory, and what stands on the tensor besides. Raises RuntimeError for what is not a leaf."""
        if id(self) in memo:
            return memo[id(self)]
        made: Any = SimTensor(deep_copy(self, self.untyped_storage(), memo), self.get_device())
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        made.grad = copy.deepcopy(self.grad, memo)
        beside = {name: value for name, value in self.__dict__.items() if name not in ("raw", "_is_param")}
        made.__dict__.update(copy.deepcopy(beside, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save as torch saves its own tensors: readable with weights_only, loadable on any device."""
        return reduced(self, self.untyped_storage())

    def tolist(self) -> Any:
        """Return the values as Python numbers, after a transfer, as on any device."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse as torch does for tensors in another memory, unless forced."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.dim() == 0 and spec else str(self), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]  # torch does not annotate it
        """Return what torch prints for a tensor, with the device."""
        text = repr(self.raw.detach())
        if self.grad_fn is not None:
            grad = f", grad_fn=<{type(self.grad_fn).__name__}>"
        else:
            grad = ", requires_grad=True" if self.requires_grad else ""
        return f"{text[:-1]}, device='{self.device}'{grad})"


def _made(cls: type[Sim], raw: torch.Tensor, index: int) -> Sim:
    made: Sim = torch.Tensor._make_wrapper_subclass(
        cls,
        raw.size(),
        strides=raw.stride(),
        storage_offset=raw.storage_offset(),
        dtype=raw.dtype,
        device=_device(index),
        requires_grad=False,
    )
    return made


@cache
def _device(index: int) -> torch.device:
    return torch.device("sim", index)


def _share_storage(made: SimTensor) -> None:
    """Let views have one storage outside too: torch asks whether two tensors are aliases by comparing storages."""
    shared = _OUTSIDE.setdefault(made.raw.untyped_storage()._cdata, own := _STORAGE(made))
    if shared is own:
        return
    place = made.storage_offset(), made.size(), made.stride()
    included = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)  # the kernel for tensors without memory, as the outside is
    try:
        with torch._C._DisableTorchDispatch():  # type: ignore[no-untyped-call, unused-ignore]
            torch.ops.aten.set_.source_Storage_storage_offset(made, shared, *place)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(included)


def raw(value: Any) -> Any:
    """Return the CPU tensor inside, also within lists; anything else as it is."""
    if isinstance(value, SimTensor):
        return value.raw
    if isinstance(value, (list, tuple)):
        return type(value)(raw(item) for item in value)
    return value
