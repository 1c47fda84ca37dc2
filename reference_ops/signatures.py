"""Signatures from torch arguments, and torch arguments from signatures.

A signature is data (day0.records); this module is the only place that turns one into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import NoneType
from typing import Any

import torch

from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value

__all__ = [
    "describe",
    "describe_value",
    "dtype_name",
    "dtype_of",
    "materialise",
    "resolve",
    "shapes_text",
    "signature_id",
    "tensor_values",
    "tensors_in",
]


_LEAVES = frozenset({int, float, bool, str, complex, NoneType, torch.dtype, torch.device, torch.layout})
"""Types of arguments that are no tensors and hold none."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's own name without the prefix, `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of that name. Raises Day0Error for one that torch does not have."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Day0Error("dtype", f"'{name}' is not a dtype of torch {torch.__version__}", hint="for example bfloat16")
    return dtype


def resolve(op: str) -> torch._ops.OpOverload:
    """Find the overload that `aten::add.Tensor` names. Raises Day0Error if torch has none of that name."""
    return _torchs_own(op) if op.startswith("aten::") else _resolve(op)  # others may come and go with a library


def _resolve(op: str) -> torch._ops.OpOverload:
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise Day0Error(op, f"torch {torch.__version__} has no operator of that name", hint="check the spelling")
    return found


_torchs_own = cache(_resolve)


def describe(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Describe one call. Arguments that share storage get the same alias number."""
    groups: dict[int, int] = {}
    for tensor in tensors_in((args, kwargs)):
        key = _storage_key(tensor)
        groups[key] = groups.get(key, 0) + 1
    shared = {key: number for number, key in enumerate(key for key, count in groups.items() if count > 1)}

    def alias(tensor: torch.Tensor) -> int | None:
        return shared.get(_storage_key(tensor))

    return Signature(
        op=op,
        args=tuple(describe_value(value, alias) for value in args),
        kwargs={name: describe_value(value, alias) for name, value in sorted(kwargs.items())},
    )


def describe_value(value: Any, alias: Callable[[torch.Tensor], int | None] = lambda _: None) -> Value:
    """Describe one argument or result."""
    if isinstance(value, torch.Tensor):
        return TensorValue(
            shape=tuple(int(size) for size in value.shape),
            dtype=dtype_name(value.dtype),
            stride=tuple(int(step) for step in value.stride()),
            offset=int(value.storage_offset()),
            alias=alias(value),
            range=_value_range(value),
        )
    if isinstance(value, (list, tuple)):
        return ListValue(items=tuple(describe_value(item, alias) for item in value))
    return _describe_scalar(value)


def _describe_scalar(value: Any) -> ScalarValue:
    # bool before int: True is an int in Python. Symbolic sizes arrive as ints on meta.
    if value is None:
        return ScalarValue(type="none", value="None")
    if isinstance(value, bool):
        return ScalarValue(type="bool", value=str(value))
    if isinstance(value, (int, torch.SymInt)):
        return ScalarValue(type="int", value=str(int(value)))
    if isinstance(value, (float, torch.SymFloat)):
        return ScalarValue(type="float", value=repr(float(value)))
    if isinstance(value, complex):
        return ScalarValue(type="complex", value=repr(value))
    if isinstance(value, torch.dtype):
        return ScalarValue(type="dtype", value=dtype_name(value))
    if isinstance(value, torch.device):
        return ScalarValue(type="device", value="device")  # the device under test, whichever that is
    if isinstance(value, torch.layout):
        return ScalarValue(type="layout", value=str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return ScalarValue(type="memory_format", value=str(value).removeprefix("torch."))
    return ScalarValue(type="str", value=str(value))


def _value_range(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the smallest and largest value of an integer tensor whose values exist."""
    if tensor.device.type != "cpu" or tensor.is_floating_point() or tensor.is_complex():
        return None
    if tensor.dtype == torch.bool or tensor.numel() == 0 or type(tensor) is not torch.Tensor:
        return None
    low, high = torch.aminmax(tensor)
    return int(low), int(high)


def _storage_key(tensor: torch.Tensor) -> int:
    # A storage object lives as long as its C++ storage only through `_cdata`; `id` would be reused.
    return int(tensor.untyped_storage()._cdata)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dicts in order."""
    found: list[torch.Tensor] = []
    _collect((tree,), found)
    return iter(found)


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    # Every call on the simulated device comes here several times: one list, no generators within each other, and the
    # commonest types first, which are told by one look.
    for item in values:
        if type(item) in _LEAVES:
            continue
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            _collect(item, found)
        elif isinstance(item, dict):
            _collect(item.values(), found)


def tensor_values(signature: Signature) -> Iterator[TensorValue]:
    """Yield the tensor arguments of a signature in order."""
    for value in (*signature.args, *signature.kwargs.values()):
        yield from _tensor_values(value)


def _tensor_values(value: Value) -> Iterator[TensorValue]:
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, ListValue):
        for item in value.items:
            yield from _tensor_values(item)


def signature_id(signature: Signature) -> str:
    """Return sixteen hex digits that name a signature. Value ranges are left out: they do not change the call."""
    return hash_json(_without_range(signature.model_dump(mode="json"))).removeprefix("sha256:")[:16]


def _without_range(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_range(item) for name, item in value.items() if name != "range"}
    return [_without_range(item) for item in value] if isinstance(value, list) else value


def shapes_text(signature: Signature) -> str:
    """Return the tensor arguments for people: `bfloat16[2, 16, 64] int64[2]`."""
    return " ".join(f"{value.dtype}{list(value.shape)}" for value in tensor_values(signature)) or "no tensors"


def materialise(
    signature: Signature, device: str, *, floating: torch.dtype | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Allocate the arguments of a call with the traced shapes, strides, offsets and aliasing, values zero.

    `floating` replaces every floating dtype, of tensors and of dtype arguments (for goldens).
    """
    reaches: dict[int | None, int] = {}
    for tensor in tensor_values(signature):
        reaches[tensor.alias] = max(reaches.get(tensor.alias, 0), _reach(tensor))
    storages: dict[int, torch.Tensor] = {}

    def build(value: Value) -> Any:
        if isinstance(value, TensorValue):
            return _allocate(value, device, floating, storages, reaches)
        if isinstance(value, ListValue):
            return [build(item) for item in value.items]
        return _scalar(value, device, floating)

    args = tuple(build(value) for value in signature.args)
    return args, {name: build(value) for name, value in signature.kwargs.items()}


def _reach(value: TensorValue) -> int:
    """Return how many elements of its storage a tensor spans, from the storage's start."""
    if 0 in value.shape:
        return value.offset
    return value.offset + 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride, strict=True))


def _allocate(
    value: TensorValue,
    device: str,
    floating: torch.dtype | None,
    storages: dict[int, torch.Tensor],
    reaches: dict[int | None, int],
) -> torch.Tensor:
    dtype = dtype_of(value.dtype)
    if floating is not None and dtype.is_floating_point:
        dtype = floating
    if value.alias is None:
        return torch.zeros(_reach(value), dtype=dtype, device=device).as_strided(
            value.shape, value.stride, value.offset
        )
    flat = storages.get(value.alias)
    if flat is None:
        flat = storages[value.alias] = torch.zeros(reaches[value.alias], dtype=dtype, device=device)
    # Two dtypes over one storage: the second sees the same bytes, as in the trace.
    seen = flat if flat.dtype == dtype else flat.view(dtype)
    return seen.as_strided(value.shape, value.stride, value.offset)


def _scalar(value: ScalarValue, device: str, floating: torch.dtype | None) -> Any:
    match value.type:
        case "none":
            return None
        case "bool":
            return value.value == "True"
        case "int":
            return int(value.value)
        case "float":
            return float(value.value)
        case "complex":
            return complex(value.value)
        case "dtype":
            dtype = dtype_of(value.value)
            return floating if floating is not None and dtype.is_floating_point else dtype
        case "device":
            return torch.device(device)
        case "layout" | "memory_format":
            return getattr(torch, value.value)
    return value.value
