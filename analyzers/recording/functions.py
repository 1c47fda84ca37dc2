"""Names of torch's functions, and which of them read values past the dispatcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Function", "describe_function"]

_MODULES = (
    ("torch.nn.functional", torch.nn.functional),
    ("torch", torch),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
)

VALUE_READERS = frozenset(
    f"torch.Tensor.{name}"
    for name in (
        *("__array__", "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__", "__repr__"),
        *("cpu", "is_nonzero", "item", "numpy", "tolist"),
    )
) | {"torch.is_nonzero"}
"""What makes the host wait for the device though no operator may show it: on the CPU the memory is simply read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """What the recorder knows of a function before it is called."""

    name: str
    """As one writes it: `torch.nn.functional.linear`, `torch.Tensor.view`, `torch.Tensor.T`."""
    reads_values: bool
    in_place: bool
    """Its arguments may look different afterwards, so they are described before."""


def describe_function(func: Any) -> Function:
    """Find the name that a person would look up."""
    name = _name(func)
    last = name.rpartition(".")[2]
    in_place = (last.endswith("_") and not last.endswith("__")) or (last.startswith("__i") and last != "__invert__")
    return Function(
        name=name, reads_values=name in VALUE_READERS, in_place=in_place or last in {"__setitem__", "__set__"}
    )


def _name(func: Any) -> str:
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{func}"
    short = getattr(func, "__name__", type(func).__name__)
    if short in ("__get__", "__set__", "__delete__"):
        return f"torch.Tensor.{getattr(getattr(func, '__self__', None), '__name__', short)}"
    for prefix, module in _MODULES:
        for candidate in (short, short.partition("_")[2]):
            if candidate and getattr(module, candidate, None) is func:
                return f"{prefix}.{candidate}"
    if hasattr(func, "__objclass__") or getattr(torch.Tensor, short, None) is func:
        return f"torch.Tensor.{short}"
    home = str(getattr(func, "__module__", None) or "torch").replace("torch._C._nn", "torch.nn.functional")
    return f"{home}.{getattr(func, '__qualname__', short)}"
