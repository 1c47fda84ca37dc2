"""Numbers where a schema wants tensors: torch unwraps the numbers that C++ had wrapped on their way to Python."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["numbers_as_tensors"]


def numbers_as_tensors(func: Any, args: tuple[Any, ...], *, always: bool = False) -> tuple[Any, ...]:
    """Make tensors of numbers that stand where the schema wants tensors.

    torch takes them back for some operators by itself, but not where a kernel is called directly: `always` is for
    there. The dtype is the one that a wrapped number would lead to.
    """
    places = _tensor_places(func, always)
    given = len(args)
    for place in places:
        if place < given and isinstance(args[place], (bool, int, float, complex)):
            break
    else:
        return args
    first = next((value for value in args if isinstance(value, torch.Tensor) and value.dtype != torch.bool), None)
    changed = list(args)
    for place in places:
        if place < len(args) and isinstance(args[place], (bool, int, float, complex)):
            dtype = None if first is None else torch.result_type(first, args[place])
            changed[place] = torch.scalar_tensor(args[place], dtype=dtype)
    return tuple(changed)


@cache
def _tensor_places(func: Any, always: bool) -> tuple[int, ...]:
    """Return the positions of tensor arguments, unless torch takes numbers there by itself."""
    base = func.name().partition("::")[2].partition(".")[0]
    if not always and torch._C._should_allow_numbers_as_tensors(base):
        return ()
    kinds = [str(argument.type) for argument in func._schema.arguments]
    return tuple(place for place, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
