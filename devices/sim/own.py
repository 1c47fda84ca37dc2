"""Kernels that the simulated device cannot borrow from the CPU.

Copies and aliases: torch leaves them to composites that assume a backend in C++, and a device without them cannot hold
a tensor. Convolution: out-of-tree backends get an operator of their own for it. Histograms: the CPU has none of whole
numbers, and a device that lacks nothing has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from day0.devices.sim.forward import refuse_in_forward
from day0.devices.sim.indices import index_of
from day0.devices.sim.recurrent import RECURRENT_KERNELS
from day0.devices.sim.refuse import refuse_mixed_devices
from day0.devices.sim.tensor import SimTensor, raw
from day0.devices.sim.wrap import count_between, count_transfer, on_device, wrap
from day0.reference_ops.signatures import tensors_in

__all__ = ["CLOSED_COMPOSITES", "OWN_KERNELS"]

CLOSED_COMPOSITES = frozenset(
    {
        "aten::mode.values",
        "aten::linalg_matrix_rank.out",
        "aten::linalg_matrix_rank.out_tol_tensor",
        "aten::linalg_matrix_rank.atol_rtol_float_out",
        "aten::linalg_matrix_rank.atol_rtol_tensor_out",
    }
)
"""Composite kernels of torch's that a device cannot use: `mode` refuses devices that it does not know by name,
`linalg_matrix_rank` does not write into `out` where a tensor has code in Python. So the device has its own."""


def _alias(self: torch.Tensor) -> torch.Tensor:
    if not isinstance(self, SimTensor):
        raise TypeError(
            "the sim device takes no part in tracing with fake tensors (torch.compile, torch.export, FakeTensorMode): "
            "make the traced tensors on device 'meta' or 'cpu'"
        )
    return SimTensor(self.raw.detach(), self.get_device())


def _same(self: torch.Tensor) -> torch.Tensor:
    return self


def _copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if isinstance(self, SimTensor) != isinstance(source, SimTensor):
        refuse_in_forward("to")
        count_transfer(
            source, to_host=isinstance(source, SimTensor), waits=isinstance(source, SimTensor) and not non_blocking
        )
    elif self.device != source.device:
        refuse_in_forward("to")
        count_between(source)
    raw(self).copy_(raw(source))
    return self


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy(target, source)


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.resize_(source.shape)
    return _copy(target, source)


def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    target = device if device is not None else self.device
    copied: torch.Tensor = raw(self).to(device="cpu", dtype=dtype, copy=True, memory_format=memory_format)
    if target.type == "meta":
        return copied.to(target)
    index = index_of(target) if target.type == "sim" else None
    if isinstance(self, SimTensor) != (target.type == "sim"):
        refuse_in_forward("to")
        count_transfer(copied, to_host=target.type != "sim", waits=target.type != "sim" and not non_blocking)
    elif self.get_device() != index:
        refuse_in_forward("to")
        count_between(copied)
    return copied.to(target) if index is None else on_device(copied, index)


def _clone(self: SimTensor, *, memory_format: torch.memory_format | None = None) -> SimTensor:
    return SimTensor(torch.ops.aten.clone.default(self.raw, memory_format=memory_format), self.get_device())


def _conj(self: SimTensor) -> SimTensor:
    # torch's lazy conjugation is a bit of the C++ tensor that a wrapper does not carry: values now, no view.
    return SimTensor(torch.ops.aten.conj_physical.default(self.raw), self.get_device())


def _negated(self: SimTensor) -> SimTensor:
    return SimTensor(torch.ops.aten.neg.default(self.raw), self.get_device())


def _convolution(*args: Any) -> Any:
    refuse_mixed_devices(torch.ops.aten.convolution.default, tensors_in(args), args, {})
    return wrap(torch.ops.aten.convolution.default(*raw(args)), args)


def _convolution_backward(grad: Any, inputs: Any, weight: Any, *rest: Any) -> Any:
    # The operator for CPUs has the sizes of the bias in fourth place.
    given = (grad, inputs, weight, [weight.shape[0]], *rest)
    refuse_mixed_devices(torch.ops.aten.convolution_backward.default, tensors_in(given), given, {})
    return wrap(torch.ops.aten.convolution_backward.default(*raw(given)), given)


def _histc(self: SimTensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count whole numbers too, as accelerators do and the CPU does not; experts' tokens are counted so."""
    inner = self.raw if self.raw.is_floating_point() else self.raw.double()
    return wrap(torch.ops.aten.histc.default(inner, bins, min, max).to(self.dtype), (self,))


def _histc_out(self: SimTensor, bins: int = 100, min: float = 0, max: float = 0, *, out: torch.Tensor) -> Any:
    return out.resize_(bins).copy_(_histc(self, bins, min, max))


OWN_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::alias": _alias,
    "aten::detach": _alias,
    "aten::lift_fresh": _same,
    "aten::lift": _same,
    "aten::copy_": _copy,
    "aten::_copy_from": _copy_from,
    "aten::_copy_from_and_resize": _copy_from_and_resize,
    "aten::_to_copy": _to_copy,
    "aten::clone": _clone,
    "aten::_conj": _conj,
    "aten::_neg_view": _negated,
    "aten::histc": _histc,
    "aten::histc.out": _histc_out,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward_overrideable": _convolution_backward,
    **RECURRENT_KERNELS,
}
"""By overload."""
