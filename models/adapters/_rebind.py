"""A module's own `forward` with one of the functions that it calls replaced: the rest of its code stays theirs.

The function gets namespaces of its own, so neither the library's module nor another instance sees the replacement.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from day0.models.adapters._adapter import Refused

__all__ = ["calls_of", "names_of", "rebound"]

Function = Callable[..., Any]


def calls_of(module: nn.Module, *names: str) -> dict[str, Function]:
    """Return those of some functions that a module's `forward` calls by their name in its file."""
    own = _plain(module)
    found = {name: own.__globals__.get(name) for name in names if name in own.__code__.co_names}
    return {name: function for name, function in found.items() if callable(function)}


def names_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of functions and attributes that a module's `forward` speaks of."""
    return _plain(module).__code__.co_names


def rebound(module: nn.Module, replaced: Mapping[str, Any]) -> Function:
    """Return the class's `forward`, without wrappers, finding other functions and objects under some names."""
    own = _plain(module)
    names = {**own.__globals__, **replaced}
    # torch.compile looks a function's names up in the module of this name, where theirs still stand.
    del names["__name__"]
    made = types.FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
    made.__kwdefaults__, made.__module__ = own.__kwdefaults__, own.__module__
    return made


def _plain(module: nn.Module) -> types.FunctionType:
    own = type(module).forward
    while True:
        if _changes_grad(own):
            raise Refused("its forward switches gradients by a decorator")
        inner = getattr(own, "__wrapped__", None)
        if inner is None:
            break
        own = inner
    if not isinstance(own, types.FunctionType):
        raise Refused("its forward is no Python function")
    return own


def _changes_grad(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == torch.no_grad.__call__.__code__.co_filename
