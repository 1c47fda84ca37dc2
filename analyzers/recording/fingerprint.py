"""Hashable keys for calls, cheap enough to make one for every call: describing each as a record would triple a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MAX_ITEMS", "alias_pattern", "call_key", "shares"]

MAX_ITEMS = 512
"""A longer list without tensors in a function's arguments counts by its length alone: it is data, not a shape."""

_Tensor = torch.Tensor
_is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]  # undeclared
_PLAIN = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_UNHASHABLE = (torch.SymInt, torch.SymFloat, torch.SymBool)


def call_key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return a key that two calls share if they have one signature: layouts, scalars, and who shares storage."""
    tensors: list[torch.Tensor] = []
    parts: list[Any] = [func]
    for value in args:
        parts.append(_part(value, tensors))
    if kwargs:
        parts.extend((name, _part(value, tensors)) for name, value in kwargs.items())
    if len(tensors) > 1:
        parts.append(alias_pattern(tensors))
    return tuple(parts)


def _part(value: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(value)
    # One value of each type: True, 1 and 1.0 are equal to Python.
    if kind in _PLAIN:
        return (kind, value)
    if isinstance(value, _Tensor):
        tensors.append(value)
        return _layout(value)
    if kind is float:
        return repr(value)  # -0.0 equals 0.0, and NaN equals nothing
    if isinstance(value, (list, tuple)):
        return (len(value), *(_part(item, tensors) for item in value[:MAX_ITEMS]))
    if kind is slice:
        return (slice, _part(value.start, tensors), _part(value.stop, tensors), _part(value.step, tensors))
    if isinstance(value, _UNHASHABLE):
        return str(value)
    if isinstance(value, (complex, int, str)):
        return (kind, value)
    # Functions, process groups, generators: their identity says nothing about the call.
    return kind


def _layout(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return (tuple(tensor.shape), tensor.dtype, tensor.layout)
    shape = tensor.shape
    key = (shape, tensor.dtype, tensor.stride(), tensor.storage_offset(), tensor.is_meta)
    try:
        hash(key)
    except TypeError:  # sizes that are symbols
        return tuple(str(item) for item in key)
    return key


def alias_pattern(tensors: list[torch.Tensor]) -> Any:
    """Return which of several tensors share storage: None if no two do."""
    if len(tensors) == 2:
        return True if shares(tensors[0], tensors[1]) else None
    numbers: dict[int, int] = {}
    pattern = tuple(numbers.setdefault(_storage(tensor), len(numbers)) for tensor in tensors)
    return None if len(numbers) == len(tensors) else pattern


def shares(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two tensors lie in one storage."""
    return first is second or _is_alias_of(first, second)


def _storage(tensor: torch.Tensor) -> int:
    # Sparse and opaque tensors have no storage of their own.
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)
