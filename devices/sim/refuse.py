"""What the simulated device refuses, in the words of torch's own backends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

import torch

from day0.devices.profile_parts import Details, layout_of
from day0.devices.sim.indices import index_of
from day0.devices.sim.state import STATE
from day0.devices.sim.tensor import SimTensor
from day0.devices.sim.wrap import place_of
from day0.reference_ops.signatures import dtype_name, tensors_in

__all__ = [
    "SIZED",
    "refuse_index",
    "refuse_lacks",
    "refuse_mixed_devices",
    "refuse_size",
    "refuse_what_the_host_lacks",
]

_CPP_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2": "Float8_e5m2",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float8_e8m0fnu": "Float8_e8m0fnu",
    "float4_e2m1fn_x2": "Float4_e2m1fn_x2",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
"""What torch's own messages call a dtype."""

_HOST_LACKS = re.compile(r"DefaultCPUAllocator.*tried to allocate (\d+) bytes", re.DOTALL)
_CPU_INDEX_ALLOWED = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Real devices take index tensors from the CPU here."""


def refuse_mixed_devices(
    func: Any, given: Iterable[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise RuntimeError for a tensor of another device, but for a number of the host's that is only read.

    `given` are the tensors among the arguments.
    """
    base = func.name().partition(".")[0]
    here: torch.device | None = None
    strange: torch.Tensor | None = None
    for tensor in given:
        if isinstance(tensor, SimTensor):
            if here is None:
                here = tensor.device
            elif tensor.device != here:
                strange = strange if strange is not None else tensor
        elif strange is None and not _may_lie_on_host(func, base, tensor, args, kwargs):
            strange = tensor
    if strange is not None:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {here or 'sim:0'} and "
            f"{strange.device}! (when checking argument in {base})"
        )


def _may_lie_on_host(func: Any, base: str, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if tensor.dim() == 0 and not _is_written(func, tensor, args, kwargs):
        return True
    return base in _CPU_INDEX_ALLOWED and tensor.dtype in (torch.int64, torch.int32, torch.bool, torch.uint8)


def _is_written(func: Any, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    written = _written_arguments(func)
    values = [args[place] for place, _ in written if place < len(args)]
    values += [kwargs[name] for _, name in written if name in kwargs]
    return any(tensor is one for one in tensors_in(values))


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple((place, one.name) for place, one in arguments if one.alias_info and one.alias_info.is_write)


def refuse_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError for an index that no device has."""
    for value in (kwargs.get("device"), *args):
        if isinstance(value, torch.device) and value.type == "sim":
            index_of(value)


def refuse_lacks(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what a kernel raises that is there, but not for these dtypes, ranks, layouts or sizes."""
    name = func.name()
    tensors = list(tensors_in((args, kwargs)))
    dtypes, ranks = tuple(dtype_name(one.dtype) for one in tensors), tuple(one.dim() for one in tensors)
    profile = STATE.profile
    lack = profile.lack_of(name, dtypes, ranks, _details(func, args, kwargs) if profile.has_details else None)
    if lack is None:
        return
    operator = name.removeprefix("aten::").partition(".")[0]
    wrong = next((dtype for dtype in dtypes if dtype in lack.dtypes), None)
    if lack.effect in ("crashes", "hangs"):
        raise RuntimeError(
            f"{operator}: on the device that this profile describes, this call {lack.effect}: {lack.reason}"
        )
    if wrong is not None:
        raise NotImplementedError(f"\"{operator}_sim\" not implemented for '{_CPP_NAMES.get(wrong, wrong)}'")
    rank = next((rank for rank in ranks if rank in lack.ranks), None)
    if rank is not None:
        raise RuntimeError(f"{operator}: the sim device does not take tensors with {rank} dimensions")
    if lack.layouts:
        raise RuntimeError(f"{operator}: the sim device does not take {' or '.join(lack.layouts)} tensors")
    raise RuntimeError(f"{operator}: the sim device does not take this call: {lack.reason}")


def _details(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Details:
    values = {**dict(zip(_argument_names(func), args, strict=False)), **kwargs}
    sizes: dict[str, tuple[int, ...] | int] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            sizes[name] = tuple(value.shape)
        elif isinstance(value, int) and not isinstance(value, bool):
            sizes[name] = value
    layouts = tuple(layout_of(tuple(one.shape), one.stride()) for one in tensors_in((args, kwargs)))
    return Details(layouts=layouts, sizes=sizes)


@cache
def _argument_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def refuse_what_the_host_lacks(error: RuntimeError, index: int) -> None:
    """Raise torch.OutOfMemoryError if the host had no memory for what a kernel makes, and the device has not either."""
    asked = _HOST_LACKS.search(str(error))
    if asked is not None:
        STATE.refuse_over_limit(int(asked.group(1)), index)


SIZED = frozenset({"aten::resize_", "aten::empty.memory_format", "aten::empty_strided"})
"""Overloads for which `refuse_size` has something to say."""


def refuse_size(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise torch.OutOfMemoryError before the host is asked for memory that the device has not."""
    if name == "aten::resize_":
        # Before the tensor has changed: one that could not grow stays as it is.
        self, sizes = args[0], args[1]
        needed = (self.storage_offset() + prod(sizes)) * self.element_size()
        more = needed - self.raw.untyped_storage().nbytes()
        if more > 0:
            STATE.refuse_over_limit(more, place_of(args))
        return
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    sizes = args[0]
    if name == "aten::empty_strided" and 0 not in sizes:
        elements = 1 + sum((size - 1) * step for size, step in zip(sizes, args[1], strict=True))
    else:
        elements = prod(sizes)
    STATE.refuse_over_limit(elements * dtype.itemsize, place_of((), kwargs.get("device")))
