"""Run other people's float32 code in float64: where its arithmetic is ours, the difference is rounding alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Widened", "doubled"]


class Widened(TorchFunctionMode):
    """Inside it float32 means float64, wherever a call names it: `.float()`, `.to(torch.float32)`, `dtype=`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return func(*(_wider(value) for value in args), **named)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def doubled(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values, floating tensors among them and in their lists in float64."""
    return tuple(_doubled(value) for value in values)


def _doubled(value: Any) -> Any:
    if isinstance(value, list):
        return [_doubled(item) for item in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
