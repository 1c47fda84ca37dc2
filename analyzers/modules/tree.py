"""The tensors in whatever a module is called with or returns: lists, dictionaries, data classes, caches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["held_tensors", "rebuilt", "tensors_of"]

Convert = Callable[[torch.Tensor], torch.Tensor]

_LEAVES = (
    *(str, bytes, int, float, complex, bool, type(None), type, range, slice, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
    nn.Module,
)
"""What holds no tensor of a call, or must not be copied."""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return all tensors below a value in a fixed order, one that stands in two places twice."""
    return list(_walk(value, set()))


def held_tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in those arguments that are no plain values: what a cache holds after a call."""
    plain = (torch.Tensor, list, tuple, dict, *_LEAVES)
    return [tensor for value in values if not isinstance(value, plain) for tensor in tensors_of(value)]


def rebuilt(value: Any, convert: Convert) -> Any:
    """Return a copy of a value with every tensor converted; what stands in two places stays one.

    Objects are copied too, so that a call can write into its own cache. Modules, functions and configs are not.
    """
    return _rebuild(value, convert, {})


def _walk(value: Any, above: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if _is_leaf(value) or id(value) in above:
        return
    above.add(id(value))
    for item in _children(value).values():
        yield from _walk(item, above)
    above.discard(id(value))


def _rebuild(value: Any, convert: Convert, done: dict[int, tuple[Any, Any]]) -> Any:
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, torch.Tensor):
        made: Any = convert(value)
    elif _is_leaf(value):
        return value
    elif isinstance(value, tuple):
        items = [_rebuild(item, convert, done) for item in value]
        made = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    else:
        return _copy(value, convert, done)
    # The original is kept beside its copy: a freed one could leave its id to another.
    done[id(value)] = (value, made)
    return made


def _copy(value: Any, convert: Convert, done: dict[int, tuple[Any, Any]]) -> Any:
    try:
        made = copy.copy(value)
    except (TypeError, AttributeError, RuntimeError):
        return value
    done[id(value)] = (value, made)
    for name, item in _children(value).items():
        new = _rebuild(item, convert, done)
        if isinstance(made, (list, dict)):
            made[name] = new
        elif isinstance(made, set):
            continue
        else:
            # Frozen data classes are written to as well: this copy is nobody else's yet.
            object.__setattr__(made, name, new)
    return made


def _children(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, (set, frozenset)):
        return {}
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _is_leaf(value: Any) -> bool:
    return isinstance(value, _LEAVES) or hasattr(value, "model_type") or isinstance(value, (set, frozenset))
