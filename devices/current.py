"""Which card of several a kernel is launched on.

torch's own operators make the device of their tensors the current one. A kernel in Python has to do so itself: Triton,
for one, launches on whichever is current, and cannot read what lies on another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = ["on_its_device"]

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(run: Callable[P, R]) -> Callable[P, R]:
    """Return `run` with the device of its first tensor as the current one; tensors on the CPU change nothing."""

    @wraps(run)
    def there(*args: P.args, **kwargs: P.kwargs) -> R:
        tensor = _first((*args, *kwargs.values()))
        if tensor is None or tensor.get_device() < 0:
            return run(*args, **kwargs)
        module: Any = getattr(torch, tensor.device.type)
        if module.current_device() == tensor.get_device():
            return run(*args, **kwargs)
        with module.device(tensor.get_device()):
            return run(*args, **kwargs)

    return there


def _first(values: tuple[object, ...]) -> torch.Tensor | None:
    return next((value for value in values if isinstance(value, torch.Tensor)), None)
